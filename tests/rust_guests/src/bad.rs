//! Programs that do wrong. Each returns, where it gets so far, the error that it was answered with.

use inferlet::allocate::{alloc_emb, alloc_kvpage, pool_stats};
use inferlet::runtime::{create_queue, synchronize};
use inferlet::text::embed_txt;
use inferlet::{runtime, session, Model, Result};

pub fn trap() -> ! {
    std::process::abort()
}

pub fn spin() -> ! {
    loop {
        std::hint::black_box(());
    }
}

/// Recurses without touching memory, so that the host's stack is what ends.
pub fn recurse() -> ! {
    #[allow(unconditional_recursion)]
    fn deeper(depth: u64) -> u64 {
        deeper(depth + 1).rotate_left(3) ^ depth
    }
    panic!("recursion ended at {}", deeper(runtime::now()))
}

/// Recurses with frames in memory, so that the instance's own stack is what ends.
pub fn recurse_with_frames() -> ! {
    #[allow(unconditional_recursion)]
    fn deeper(depth: u64) -> u64 {
        let frame = std::hint::black_box([depth; 4]);
        deeper(depth + 1) + frame[0]
    }
    panic!("recursion ended at {}", deeper(0))
}

/// Takes 10 GB, in pieces that are written to.
pub fn allocate() -> Result<String> {
    let mut pieces = Vec::new();
    for _ in 0..160 {
        pieces.push(std::hint::black_box(vec![1u8; 64 << 20]));
    }
    Ok(format!("{} pieces were given", pieces.len()))
}

/// Sends and logs without end, whatever the answers are.
pub fn flood() -> ! {
    let message = "flood ".repeat(1000);
    loop {
        let _ = session::send(&message);
        runtime::log(runtime::LogLevel::Info, &message);
    }
}

/// Ends without giving anything back.
pub async fn leak(pages: u32) -> Result<String> {
    let model = Model::load()?;
    let queue = create_queue(model.name())?;
    alloc_kvpage(queue, pages)?;
    let embeds = [alloc_emb(queue, 4)?, 4];
    embed_txt(queue, &[1, 1, 1, 1], &[0, 4], &embeds)?;
    synchronize(queue).await?;
    let _forgotten = runtime::sleep(std::time::Duration::from_secs(1000)).into_handle()?;
    Ok(pool_stats(queue)?)
}

pub fn panic() -> ! {
    panic!("on purpose")
}

/// Waits for what can't come.
pub async fn deadlock() -> Result<String> {
    std::future::pending().await
}
