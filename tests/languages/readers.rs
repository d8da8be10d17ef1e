//! Readers and writers of all languages beside each other.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use lockmod::client::{Guard, Locker};
use redis::Value;

use crate::common::{Server, wait_until};
use crate::{LANGUAGES, Worker, info, nodes, waiters};

const NAME: &str = "shared";
/// How often each of the clients holds the lock, two times of three as a reader.
const ROUNDS: usize = 12;

fn locker(nodes: &[Server], label: &str) -> Locker {
    let locker = Locker::builder().nodes(nodes.iter().map(Server::url)).label(label);
    let locker = locker.ttl(Duration::from_secs(30)).timeout(Duration::from_secs(2));
    locker.wait(Duration::from_secs(60)).build().unwrap()
}

/// One worker of each language.
fn workers(nodes: &[Server]) -> Vec<Worker> {
    let start = |language| {
        let mut worker = Worker::start(language, nodes, &format!("{language:?}"));
        assert_eq!(worker.ask("locker 30000"), "ready");
        worker
    };
    LANGUAGES.map(start).into()
}

/// Each of the nodes has so many readers.
fn read(nodes: &[Server], count: i64) -> bool {
    nodes.iter().all(|node| info(node, NAME, "readers") == Value::Int(count))
}

/// Each of the nodes has so many in line.
fn wait(nodes: &[Server], count: i64) -> bool {
    nodes.iter().all(|node| waiters(node, NAME) == Value::Int(count))
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_all_languages_hold_a_lock_together_and_a_writer_waits_for_all() {
    let nodes = nodes(3);
    let (mut workers, locker) = (workers(&nodes), locker(&nodes, "Rust"));
    let before = locker.acquire(NAME).await.unwrap();
    let first = i64::from(before.fence());
    before.release().await.unwrap();

    let mut last = first;
    for worker in &mut workers {
        let fence = worker.fence(format_args!("acquire-shared {NAME} 20000"));
        assert!(fence >= first, "{fence} after the writer's {first}");
        last = last.max(fence);
    }
    let reader = locker.acquire(NAME).shared().await.unwrap();
    last = last.max(i64::from(reader.fence()));
    wait_until("all of them read", || read(&nodes, 4));

    let writer = tokio::spawn(locker.acquire(NAME).into_future());
    wait_until("the writer waits", || wait(&nodes, 1));
    for worker in &mut workers {
        assert_eq!(worker.ask("renew"), "true");
        assert_eq!(worker.ask("release"), "true");
    }
    wait_until("one of them reads", || read(&nodes, 1));
    assert!(!writer.is_finished() && !reader.is_lost());
    reader.release().await.unwrap();
    let writer: Guard = writer.await.unwrap().unwrap();
    assert!(i64::from(writer.fence()) > last, "{} after {last}", writer.fence());

    // They wait for the writer, and come in together when it becomes a reader.
    for worker in &mut workers {
        worker.tell(format_args!("acquire-shared {NAME} 60000"));
    }
    wait_until("they wait", || wait(&nodes, 3));
    writer.downgrade().await.unwrap();
    for worker in &mut workers {
        assert_eq!(worker.hear(), writer.fence().to_string());
    }
    wait_until("all of them read", || read(&nodes, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_of_each_language_becomes_a_reader_and_lets_others_in() {
    let nodes = nodes(3);
    let (mut workers, locker) = (workers(&nodes), locker(&nodes, "Rust"));
    let mut last = 0;
    for number in 0..workers.len() {
        let fence = workers[number].fence(format_args!("acquire {NAME} 20000"));
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        let refused = workers[(number + 1) % 3].ask(format_args!("acquire-shared {NAME} 0"));
        assert!(refused.starts_with("lock 'shared'"), "{refused}");
        let reader = tokio::spawn(locker.acquire(NAME).shared().into_future());
        wait_until("Rust waits", || wait(&nodes, 1));

        assert_eq!(workers[number].ask("downgrade"), "true");
        let reader = reader.await.unwrap().unwrap();
        assert_eq!(i64::from(reader.fence()), fence);
        let beside = &mut workers[(number + 1) % 3];
        assert_eq!(beside.fence(format_args!("acquire-shared {NAME} 20000")), fence);
        let writes = beside.ask("release");
        assert_eq!(writes, "true");
        let refused = beside.ask(format_args!("acquire {NAME} 0"));
        assert!(refused.starts_with("lock 'shared'"), "{refused}");

        // It stays a reader, also for a node that has forgotten it. (A quorum lets readers in:
        // without one more node they would be lost.)
        wait_until("both read everywhere", || read(&nodes, 2));
        nodes[0].run(&format!("DEL {NAME}")).unwrap();
        wait_until("it is given back beside the other", || {
            assert_eq!(workers[number].ask("renew"), "true");
            read(&nodes[..1], 1)
        });
        reader.extend().await.unwrap();
        wait_until("both are back", || read(&nodes, 2));
        assert_eq!(workers[number].ask("release"), "true");
        reader.release().await.unwrap();
    }
}

/// As the workers do it, in Rust.
async fn rounds_in_rust(locker: Locker, file: &Path) {
    let mut log = File::options().append(true).open(file).unwrap();
    for round in 0..ROUNDS {
        let acquire = locker.acquire(NAME);
        let (acquire, reads) =
            if round % 3 > 0 { (acquire.shared(), " reads") } else { (acquire, "") };
        let guard = acquire.await.unwrap();
        let who = format!("{} Rust{reads}\n", guard.fence());
        log.write_all(format!("enter {who}").as_bytes()).unwrap();
        assert!(!guard.is_lost());
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..5))).await;
        log.write_all(format!("leave {who}").as_bytes()).unwrap();
        guard.release().await.unwrap();
    }
}

/// What a log of entering and leaving says, line by line.
#[derive(Default)]
struct Inside<'a> {
    readers: Vec<&'a str>,
    writer: Option<&'a str>,
    /// The largest fences so far.
    wrote: i64,
    read: i64,
}

impl<'a> Inside<'a> {
    fn enter(&mut self, who: &'a str, fence: i64, reads: bool) {
        assert_eq!(self.writer, None, "{who} beside a writer");
        if reads {
            assert!(fence >= self.wrote, "reader {who} after a writer's {}", self.wrote);
            self.read = self.read.max(fence);
            self.readers.push(who);
        } else {
            assert_eq!(self.readers, Vec::<&str>::new(), "writer {who} beside readers");
            assert!(fence > self.wrote.max(self.read), "writer {who} after {}", self.read);
            (self.wrote, self.writer) = (fence, Some(who));
        }
    }

    fn leave(&mut self, who: &'a str, reads: bool) {
        if reads {
            let place = self.readers.iter().position(|reader| *reader == who).unwrap();
            self.readers.swap_remove(place);
        } else {
            assert_eq!(self.writer.take(), Some(who));
        }
    }
}

/// Short lines that are appended to a file are in it in the order of their writing, whichever
/// process they come from. That readers hold it together is for the first test to show: whether
/// they do here is up to the machine.
#[tokio::test(flavor = "multi_thread")]
async fn writers_are_alone_and_fences_order_readers_and_writers_of_all_languages() {
    let nodes = nodes(3);
    let (mut workers, locker) = (workers(&nodes), locker(&nodes, "Rust"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    File::create(&file).unwrap();
    for worker in &mut workers {
        worker.tell(format_args!("rounds {NAME} {ROUNDS} {} mixed", file.display()));
    }
    rounds_in_rust(locker, &file).await;
    for worker in &mut workers {
        assert_eq!(worker.hear(), "done");
    }

    let log = fs::read_to_string(&file).unwrap();
    println!("{log}");
    assert_eq!(log.lines().count(), (workers.len() + 1) * ROUNDS * 2);
    let mut inside = Inside::default();
    for line in log.lines() {
        let (does, who) = line.split_once(' ').unwrap();
        let reads = who.ends_with(" reads");
        match does {
            "enter" => inside.enter(who, who.split(' ').next().unwrap().parse().unwrap(), reads),
            _ => inside.leave(who, reads),
        }
    }
}
