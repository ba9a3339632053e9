//! Child instances.

use std::time::Duration;

use inferlet::messaging::{pull, push};
use inferlet::runtime::{instance_id, launch};
use inferlet::{join, race, runtime, session, Result};

pub async fn sleep() -> Result<String> {
    runtime::sleep(Duration::from_secs(600)).await?;
    Ok(String::new())
}

pub async fn run(program: &str, arguments: &[&str]) -> Result<String> {
    match launch(program, arguments).await {
        Err(error) => Ok(format!("{}|{}", error.code.as_str(), error.message)),
        result => result,
    }
}

/// Tells its parent that it is there, and stays.
pub async fn hello(topic: &str) -> Result<String> {
    push(topic, &instance_id()).await?;
    sleep().await
}

/// Has children, and stays.
pub async fn family(program: &str, size: usize) -> Result<String> {
    let topic = format!("{}/hello", instance_id());
    let children: Vec<_> = (0..size).map(|_| launch(program, &["hello", &topic])).collect();
    for _ in 0..size {
        pull(&topic).await?;
    }
    session::send("all there")?;
    let _ = race(children, |_| true).await;
    run(program, &["echo", "one has ended"]).await
}

pub async fn give_up(program: &str) -> Result<String> {
    let topic = format!("{}/hello", instance_id());
    let child = launch(program, &["hello", &topic]);
    let name = pull(&topic).await?;
    drop(child);
    Ok(name)
}

/// Launches without waiting for any; says how many were accepted, and why not more.
pub fn burst(program: &str, size: usize) -> Result<String> {
    for accepted in 0..size {
        if let Err(error) = launch(program, &["sleep"]).into_handle() {
            return Ok(format!("{accepted} {}", error.code.as_str()));
        }
    }
    Ok(size.to_string())
}

/// How many generations below this one there can be.
pub async fn nest(program: &str, depth: usize) -> Result<String> {
    match launch(program, &["nest", program, &(depth + 1).to_string()]).await {
        Err(error) => Ok(format!("{depth} {}", error.code.as_str())),
        result => result,
    }
}

pub async fn talk(program: &str) -> Result<String> {
    let (ask, answer) = (format!("{}/ask", instance_id()), format!("{}/answer", instance_id()));
    let conversation = async {
        let mut answers = Vec::new();
        for question in ["one", "two"] {
            push(&ask, question).await?;
            answers.push(pull(&answer).await?);
        }
        push(&ask, "stop").await?;
        Ok(answers)
    };
    let child = launch(program, &["answer", &ask, &answer]);
    let (said, result): (Result<Vec<String>>, _) = join(conversation, child).await;
    Ok(format!("{} {}", said?.join(" "), result?))
}

pub async fn answer(questions: &str, answers: &str) -> Result<String> {
    loop {
        let question = pull(questions).await?;
        if question == "stop" {
            return Ok("bye".into());
        }
        push(answers, &question.to_uppercase()).await?;
    }
}

/// Says more to nobody than a mailbox holds.
pub fn chatter() -> Result<String> {
    let large = "x".repeat(2 << 20);
    for _ in 0..20 {
        session::send(&large)?;
    }
    Ok("said it all".into())
}
