//! Names of any length: a node may have longer ones than a listing can show.

use std::time::Duration;

use lockmod::client::{AcquireError, NAME_MAX};

use crate::cli::{lockmod, succeeds, text};
use crate::{locker, nodes};

/// Regression: one name of a MiB was garbage in every listing of the locks, and broke the
/// connections that carried the leases.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_with_a_very_long_name_hides_no_other_and_breaks_no_connection() {
    let nodes = nodes(3);
    let locker = locker(&nodes);
    let guard = locker.acquire("other").label("worker-7").await.unwrap();
    let long = "n".repeat((1 << 20) + 1);
    for node in &nodes {
        let mut acquire = redis::cmd("LOCK.ACQUIRE");
        acquire.arg(&long).arg("t").arg(600_000).exec(&mut node.connect()).unwrap();
    }
    for survey in [locker.survey(100).await, locker.survey_all(100).await] {
        assert!(survey.nodes.iter().all(|node| node.status.is_ok()), "{:?}", survey.nodes);
        assert_eq!((survey.locks.len(), survey.unnamed), (1, 1));
    }
    for listed in locker.list().await {
        assert_eq!((listed.locks.unwrap().len(), listed.unnamed), (1, 1));
    }
    assert!(!guard.is_lost());
    guard.extend().await.unwrap();
    for args in [&["list"][..], &["list", "--all"], &["status"]] {
        let output = lockmod(&nodes, args).output().unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && said.contains("worker-7"), "{said}");
        let left_out = "locks with names of more than 65536 bytes are not shown: 1";
        assert!(said.contains(left_out), "{args:?}: {said}");
    }
    assert!(succeeds(&nodes, &["status", "--json"]).contains("\"cut\":true"));
    // Commands that need no listing reach it.
    let infos = locker.info(&long).await;
    assert!(infos.iter().all(|node| node.info.is_ok()));
    locker.force_release(&long).await;
    assert_eq!(locker.survey_all(100).await.unnamed, 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_name_that_could_not_be_listed_is_refused_and_the_longest_is_shown_in_short() {
    let nodes = nodes(1);
    let locker = locker(&nodes);
    let refused = locker.acquire("n".repeat(NAME_MAX + 1)).await;
    let Err(AcquireError::BadOption(text)) = refused else { panic!("{refused:?}") };
    assert_eq!(text, "the lock's name has 65537 bytes: give at most 65536");
    let many = locker.acquire_many(["a".to_owned(), "n".repeat(NAME_MAX + 1)]).await;
    assert!(matches!(many, Err(AcquireError::BadOption(_))), "{many:?}");
    let name = "n".repeat(NAME_MAX);
    let guard = locker.acquire(&name).wait(Duration::ZERO).await.unwrap();
    assert!(locker.survey(10).await.locks.contains_key(name.as_bytes()));
    let said = locker.try_acquire(&name).await.unwrap_err().to_string();
    assert!(said.contains("nnn... (65536 bytes)' is not free") && said.len() < 500, "{said}");
    guard.release().await.unwrap();
}
