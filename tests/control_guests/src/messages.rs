//! Topics and work queues.

use inferlet::messaging::{broadcast, pull, push, subscribe, try_broadcast};
use inferlet::{session, Result};

pub async fn worker(jobs: &str, results: &str) -> Result<String> {
    let mut count = 0;
    loop {
        let job = pull(jobs).await?;
        if job == "stop" {
            return Ok(count.to_string());
        }
        push(results, &job).await?;
        count += 1;
    }
}

pub async fn produce(topic: &str, count: usize) -> Result<String> {
    for number in 0..count {
        push(topic, &number.to_string()).await?;
    }
    Ok(String::new())
}

pub async fn collect(topic: &str, count: usize) -> Result<String> {
    let mut texts = Vec::new();
    for _ in 0..count {
        texts.push(pull(topic).await?);
    }
    Ok(texts.join(" "))
}

/// Reads until `end` comes, beginning when the client says so.
pub async fn listen(topic: &str) -> Result<String> {
    let subscription = subscribe(topic)?;
    session::send("listening")?;
    session::receive().await?;
    let mut heard = Vec::new();
    loop {
        let text = subscription.receive().await?;
        if text == "end" {
            return Ok(heard.join(" "));
        }
        heard.push(text[..text.len().min(9)].to_owned());
    }
}

/// Broadcasts until somebody's box is full, says why, and waits for room.
pub async fn flood(topic: &str) -> Result<String> {
    let large = "x".repeat(2 << 20);
    let mut sent = 0;
    let full = loop {
        match try_broadcast(topic, &large) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    session::send(&full.to_string())?;
    broadcast(topic, "end").await?;
    Ok(sent.to_string())
}
