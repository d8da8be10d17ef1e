//! A lock on one node, by the reference.

use redis::Value;

use crate::common::{Server, wait_until};
use crate::{Language, Worker, fence, holder, info, waiters};

#[test]
fn a_lock_on_one_node_is_acquired_renewed_and_released() {
    let nodes = [Server::start()];
    let mut worker = Worker::start(Language::Reference, &nodes, "worker");
    assert_eq!(worker.ask("node job"), "1");
    assert_eq!(worker.ask("node-acquire"), "1", "a retry is harmless");
    assert_eq!(worker.ask("node-renew"), "true");
    assert_eq!(holder(&nodes[0], "job").as_deref(), Some("worker"));
    assert_eq!(worker.ask("node-release"), "true");
    assert_eq!(worker.ask("node-release"), "false");
    assert_eq!(worker.ask("node-valid"), "false");
    assert_eq!(worker.ask("node-acquire"), "2");
}

#[test]
fn a_lock_on_one_node_is_read_beside_others() {
    let nodes = [Server::start()];
    nodes[0].run("LOCK.ACQUIRE job other 60000 SHARED").unwrap();
    let mut worker = Worker::start(Language::Reference, &nodes, "worker");
    assert_eq!(worker.ask("node job shared"), "1");
    assert_eq!(worker.ask("node-renew"), "true");
    assert_eq!(info(&nodes[0], "job", "readers"), Value::Int(2));
    assert_eq!(worker.ask("node-release"), "true");
    assert_eq!(info(&nodes[0], "job", "readers"), Value::Int(1));
    // A writer keeps it out, and it waits for the writer as a reader.
    nodes[0].run("LOCK.RELEASE job other").unwrap();
    nodes[0].run("LOCK.ACQUIRE job other 60000").unwrap();
    worker.tell("node-acquire 50000");
    wait_until("it stands in line", || info(&nodes[0], "job", "waiting_readers") == Value::Int(1));
    nodes[0].run("LOCK.EXTEND job other 60000 SHARED").unwrap();
    assert_eq!(worker.hear(), "2");
    assert_eq!(worker.ask("node-release"), "true");
}

#[test]
fn a_lock_on_one_node_that_is_not_ours_is_left_alone() {
    let nodes = [Server::start()];
    nodes[0].run("LOCK.ACQUIRE job other 60000 LABEL other").unwrap();
    let mut worker = Worker::start(Language::Reference, &nodes, "worker");
    assert_eq!(worker.ask("node job"), "None");
    assert_eq!(worker.ask("node-renew"), "false");
    assert_eq!(worker.ask("node-release"), "false");
    nodes[0].run("LOCK.RELEASE job other").unwrap();
    assert_eq!(worker.ask("node-acquire"), "2");
    // Taken away by force: the stale holder is told, and the next one unharmed.
    nodes[0].run("DEL job").unwrap();
    nodes[0].run("LOCK.ACQUIRE job next 60000 LABEL next").unwrap();
    assert_eq!(fence(&nodes[0], "job"), 3);
    assert_eq!(worker.ask("node-renew"), "false");
    assert_eq!(worker.ask("node-valid"), "false");
    assert_eq!(worker.ask("node-release"), "false");
    assert_eq!(holder(&nodes[0], "job").as_deref(), Some("next"));
}

#[test]
fn who_waits_for_a_lock_on_one_node_is_served_when_it_is_free() {
    let nodes = [Server::start()];
    nodes[0].run("LOCK.ACQUIRE job other 60000 LABEL other").unwrap();
    let mut worker = Worker::start(Language::Reference, &nodes, "worker");
    assert_eq!(worker.ask("node job"), "None");
    assert_eq!(worker.ask("node-acquire 1"), "None", "not in time");
    worker.tell("node-acquire 50000");
    wait_until("it stands in line", || waiters(&nodes[0], "job") == Value::Int(1));
    nodes[0].run("LOCK.RELEASE job other").unwrap();
    assert_eq!(worker.hear(), "2");
    assert_eq!(worker.ask("node-valid"), "true");
    assert_eq!(worker.ask("node-release"), "true");
}
