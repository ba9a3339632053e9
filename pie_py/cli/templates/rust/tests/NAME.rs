//! Run by `cargo test`: each run has a model that says what the test tells it to.

use std::process::Command;

/// What the crate's program sends and returns, of a model that says these texts.
fn run(says: &[&str], args: &[&str]) -> String {
    let options = says.iter().flat_map(|text| ["--says", text]);
    let mut command = Command::new("pie-py");
    command.arg("run").args(options).arg(env!("CARGO_MANIFEST_DIR")).arg("--").args(args);
    let done = command.output().expect("pie-py is installed");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("it sends text")
}

#[test]
fn it_sends_what_the_model_says() {
    let sent = run(&["there was a king."], &["--prompt", "Once upon a time"]);
    assert_eq!(sent, "there was a king.\n");
}
