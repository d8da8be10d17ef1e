//! Nothing secret in what is printed for programmers: tokens, passwords, keys.

use std::fmt::Debug;

use lockmod::client::{Locker, blocking};

use crate::common::Server;
use crate::nodes;

const PASSWORD: &str = "s3cret-pa55word";

/// All texts that can be made from a value.
fn shown(value: &impl Debug) -> [String; 2] {
    [format!("{value:?}"), format!("{value:#?}")]
}

/// How bytes may be written.
fn spellings(secret: &[u8]) -> [String; 5] {
    let list = |bytes: &[u8]| format!("{bytes:?}").trim_matches(['[', ']']).to_owned();
    [
        secret.escape_ascii().to_string(),
        hex::encode(secret),
        hex::encode_upper(secret),
        list(secret),
        format!("{secret:#?}").trim_matches(['[', ']', '\n']).to_owned(),
    ]
}

#[track_caller]
fn assert_kept(texts: &[String], secrets: &[&[u8]]) {
    for text in texts {
        for spelling in secrets.iter().flat_map(|secret| spellings(secret)) {
            assert!(!text.contains(&spelling), "{spelling}: {text}");
        }
    }
}

fn with_passwords(nodes: &[Server]) -> Vec<String> {
    let port = |url: String| url.rsplit(':').next().unwrap_or_default().to_owned();
    let url = |node: &Server| format!("redis://default:{PASSWORD}@127.0.0.1:{}", port(node.url()));
    nodes.iter().map(url).collect()
}

/// Regression: guards were printed with their tokens, and settings with their passwords.
#[tokio::test(flavor = "multi_thread")]
async fn no_public_type_prints_a_token_or_a_password() {
    let nodes = nodes(3);
    for node in &nodes {
        node.run(&format!("CONFIG SET requirepass {PASSWORD}")).unwrap();
    }
    let builder = Locker::builder().nodes(with_passwords(&nodes)).label("worker-7");
    let mut texts = shown(&builder.clone().client_certificate("chain", PASSWORD)).to_vec();
    let locker = builder.clone().build().unwrap();
    let holder = locker.holder();
    let guard = locker.acquire("orders").await.unwrap();
    let share = holder.acquire("shared").await.unwrap();
    let many = locker.acquire_many(["x", "y"]).await.unwrap();
    texts.extend([shown(&locker), shown(&holder), shown(&guard), shown(&share)].concat());
    texts.extend([shown(&many), shown(&locker.acquire("b"))].concat());
    texts.extend(shown(&locker.acquire_many(["a"])));
    assert!(
        texts.iter().any(|text| text.contains("Guard { name: \"orders\", fence: 1")),
        "{texts:?}"
    );
    assert!(texts.iter().all(|text| text.len() < 500), "they are short: {texts:?}");
    texts.extend(shown(&locker.survey(9).await));
    assert!(texts.iter().any(|text| text.contains("\"orders\": LockSurvey")), "{texts:?}");
    texts.extend([shown(&locker.list().await), shown(&locker.info("orders").await)].concat());
    texts.extend(shown(&locker.try_acquire("orders").await.unwrap_err()));
    let (mut leaked, mut tokens) = (vec![guard.leak(), share.leak()], Vec::new());
    leaked.extend(many.into_iter().map(|guard| guard.leak()));
    texts.extend(shown(&leaked));
    let in_blocking = tokio::task::spawn_blocking(move || {
        let locker = blocking::Locker::new(builder).unwrap();
        let (guard, holder) = (locker.acquire("blocking").unwrap(), locker.holder());
        let mut texts = [shown(&locker), shown(&guard), shown(&holder)].concat();
        let (one, many) = (locker.request("a"), locker.request_many(["a"]));
        texts.extend([shown(&one), shown(&many), shown(&holder.request("a"))].concat());
        (texts, guard.leak())
    });
    let (blocking, last) = in_blocking.await.unwrap();
    texts.extend(blocking);
    leaked.push(last);
    tokens.extend(leaked.iter().map(|leaked| &leaked.token[..]));
    assert_kept(&texts, &[&tokens[..], &[PASSWORD.as_bytes()]].concat());
}

/// Regression: an error about a malformed URL showed the malformed part.
#[tokio::test]
async fn no_error_about_a_url_shows_a_password() {
    for url in [
        "redis://u:s3cret@h:x",
        "redis://:s3cret#@h",
        "redis://:p@h#s3cret",
        "redis://h/1#s3cret",
        "redis://me:s3cret",
        "redis://me:s3cret/2",
        "redis://:s3cret",
        "unix:///s?pass=p#s3cret",
        "unix:///s#s3cret",
        "redis://:s3cret@a,redis://:s3cret@b",
        "redis://:s3cret@a redis://:s3cret@b",
        "s3://me:s3cret@h",
        "me:s3cret@h",
    ] {
        let builder = Locker::builder().node(url);
        let texts = shown(&builder).to_vec();
        let error = builder.build().unwrap_err();
        let texts = [texts, shown(&error).to_vec(), vec![error.to_string()]].concat();
        assert!(texts.iter().all(|text| !text.contains("s3cret")), "{url}: {texts:?}");
    }
}
