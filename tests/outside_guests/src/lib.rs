//! HTTP and MCP: what tests launch; the first argument says which.
//!
//! `tests/end_to_end/guests/outside.py` does the same in Python.

use std::time::Duration;

use inferlet::{http, join_all, mcp, session, timeout, Error, Result};

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["get", url] => get(url).await,
        ["post", url, body] => post(url, body).await,
        ["json", url] => json(url).await,
        ["stream", url] => stream(url).await,
        ["lines", url] => lines(url).await,
        ["many", url, count] => many(url, number(count)?).await,
        ["hurry", url, milliseconds] => hurry(url, number(milliseconds)?).await,
        ["give-up", url] => give_up(url).await,
        ["leave", url] => leave(url).await,
        ["servers"] => Ok(mcp::servers().join(" ")),
        ["tools", server] => tools(server).await,
        ["call", server, tool, arguments] => call(server, tool, arguments).await,
        ["cancel", server, tool, arguments] => cancel(server, tool, arguments).await,
        _ => Err(Error::usage(format!("no guest is called by {arguments:?}"))),
    }
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|error| Error::usage(format!("{text}: {error}")))
}

async fn get(url: &str) -> Result<String> {
    let response = http::get(url, &[("X-Mine", "ü")]).await?;
    let kind = response.header("Content-Type").unwrap_or("none").to_string();
    Ok(format!("{} {kind} {}", response.status(), response.text().await?))
}

async fn post(url: &str, body: &str) -> Result<String> {
    let response = http::post(url, &[("Content-Type", "text/x")], body.as_bytes()).await?;
    Ok(format!("{} {}", response.status(), response.text().await?))
}

async fn json(url: &str) -> Result<String> {
    let value = http::get(url, &[]).await?.json().await?;
    let name = value.get("name").and_then(|name| name.as_str());
    Ok(name.unwrap_or("nameless").to_string())
}

async fn stream(url: &str) -> Result<String> {
    let mut response = http::get(url, &[]).await?;
    let mut size = 0;
    while let Some(chunk) = response.chunk().await? {
        if size == 0 {
            session::send("begun")?;
        }
        size += chunk.len();
    }
    Ok(size.to_string())
}

async fn lines(url: &str) -> Result<String> {
    let mut lines = http::get(url, &[]).await?.error_for_status()?.lines();
    let (mut count, mut all) = (0, Vec::new());
    while let Some(line) = lines.next_line().await? {
        count += 1;
        all.push(line);
    }
    assert!(lines.next_line().await?.is_none());
    Ok(format!("{count} {}", all.join("|")))
}

async fn many(url: &str, count: u64) -> Result<String> {
    let answers = join_all((0..count).map(|i| {
        let url = format!("{url}{i}");
        async move { http::get(&url, &[]).await?.text().await }
    }))
    .await;
    let texts: Vec<String> = answers.into_iter().collect::<Result<_>>()?;
    Ok(texts.join(","))
}

async fn hurry(url: &str, milliseconds: u64) -> Result<String> {
    let limit = Some(Duration::from_millis(milliseconds));
    http::request("GET", url, &[], b"", limit).await?.text().await
}

async fn give_up(url: &str) -> Result<String> {
    match timeout(Duration::from_millis(300), http::get(url, &[])).await? {
        Some(answer) => Ok(format!("{}", answer?.status())),
        None => Ok("given up".into()),
    }
}

async fn leave(url: &str) -> Result<String> {
    let response = http::get(url, &[]).await?;
    Ok(format!("left {}", response.into_body()?))
}

async fn tools(server: &str) -> Result<String> {
    let tools = mcp::list_tools(server).await?;
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool.get("name")?.as_str()).collect();
    Ok(names.join(" "))
}

async fn call(server: &str, tool: &str, arguments: &str) -> Result<String> {
    let result = mcp::call_tool(server, tool, arguments).await?;
    Ok(format!("{} {}", if result.is_error { "error" } else { "ok" }, result.text()))
}

async fn cancel(server: &str, tool: &str, arguments: &str) -> Result<String> {
    let call = mcp::call_tool(server, tool, arguments);
    match timeout(Duration::from_millis(1500), call).await? {
        Some(answer) => Ok(answer?.text()),
        None => Ok("given up".into()),
    }
}
