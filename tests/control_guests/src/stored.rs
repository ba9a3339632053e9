//! Keys and values.

use inferlet::store::{self, commit};
use inferlet::{join_all, Result};

pub async fn count(key: &str, times: usize) -> Result<String> {
    let mut value = None;
    for _ in 0..times {
        value = store::update(key, |old| {
            let old: u64 = old.map_or(0, |old| String::from_utf8_lossy(old).parse().unwrap());
            Some((old + 1).to_string().into_bytes())
        })
        .await?;
    }
    Ok(text(value))
}

pub async fn put(key: &str, value: &str) -> Result<String> {
    match store::set(key, value.as_bytes()).await {
        Err(error) => Ok(error.to_string()),
        Ok(()) => Ok(String::new()),
    }
}

pub async fn get(key: &str) -> Result<String> {
    Ok(text(store::get(key).await?))
}

pub async fn keys(prefix: &str) -> Result<String> {
    Ok(store::keys(prefix).await?.join(" "))
}

pub async fn fill(prefix: &str, count: usize) -> Result<String> {
    let sets = (0..count).map(|n| async move { store::set(&format!("{prefix}{n:05}"), b"").await });
    join_all(sets).await.into_iter().collect::<Result<Vec<()>>>()?;
    Ok(String::new())
}

/// More at once than may be under way.
pub async fn bulk(count: usize) -> Result<String> {
    let values: Vec<Vec<u8>> = (0..count).map(|n| vec![n as u8; 1 << 20]).collect();
    let sets = values
        .iter()
        .enumerate()
        .map(|(n, value)| async move { store::set(&format!("bulk/{n}"), value).await });
    join_all(sets).await.into_iter().collect::<Result<Vec<()>>>()?;
    let gets = (0..count).map(|n| async move { store::get(&format!("bulk/{n}")).await });
    let found: Result<Vec<_>> = join_all(gets).await.into_iter().collect();
    assert!(found?.into_iter().eq(values.into_iter().map(Some)));
    for n in 0..count {
        store::delete(&format!("bulk/{n}")).await?;
    }
    Ok("as it was".into())
}

pub async fn transact() -> Result<String> {
    store::delete("t/c").await?;
    let both = [("t/a", Some(&b"1"[..])), ("t/b", Some(b"\0\xff"))];
    assert!(commit(&both, &[("t/c", None)]).await?);
    for (key, value) in [("t/b", Some(&b"other"[..])), ("t/b", None), ("t/c", Some(b""))] {
        assert!(!commit(&[("t/a", Some(b"9"))], &[(key, value)]).await?);
    }
    assert_eq!(store::get("t/a").await?.as_deref(), Some(&b"1"[..]));
    store::set("t/a", "ä").await?;
    assert_eq!(store::get_text("t/a").await?.as_deref(), Some("ä"));
    store::set("t/a", b"1").await?;
    assert!(commit(&[("t/a", None), ("t/c", Some(b"2"))], &both).await?);
    let found = store::keys("t/").await?.join(" ");
    assert_eq!(store::update("t/c", |_| None).await?, None);
    Ok(format!("{found} {}", text(store::get("t/c").await?)))
}

fn text(value: Option<Vec<u8>>) -> String {
    value.map_or("nothing".into(), |value| String::from_utf8_lossy(&value).into_owned())
}
