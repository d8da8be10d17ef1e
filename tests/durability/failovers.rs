//! A storm of failovers: a client at each server of a group acquires the lock wherever it is
//! granted, holds it, renews it and releases it, while masters are stopped, killed and replaced.
//! `SET NX PX` at the same servers shows that these failovers are dangerous.
//!
//! The group decides who is promoted: through Sentinels, or the masters of a Cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use redis::Value;

use crate::common::{Builder, PATIENCE, Server, cmd, wait_at_most, wait_until};

pub(crate) const TTL_MS: u64 = 2_000;
/// How long a client may rely on a lease, from the instant at which it asked.
const VALIDITY: Duration = Duration::from_millis(TTL_MS - TTL_MS / 100 - 2);

/// A master, or one of its replicas.
pub(crate) fn member(replicas: usize) -> Builder {
    Server::builder()
        .config("repl-diskless-sync", "yes")
        .module_arg("max-ttl", TTL_MS)
        .module_arg("replicas", replicas)
}

/// A master with its replicas.
pub(crate) trait Replicated {
    fn servers(&self) -> &[Server];
    fn server(&mut self, index: usize) -> &mut Server;
    /// The master in normal operation.
    fn master(&self) -> usize;
    /// Held while there is no master, if others depend on it.
    fn ballot(&self) -> Option<MutexGuard<'static, ()>> {
        None
    }
    /// Waits until this master is replaced, and promotes a replica if that does not happen on its
    /// own.
    fn await_successor(&self, master: usize, turn: usize);
}

/// What happens to a master that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// It is stopped, and resumes with the commands in its sockets as soon as it has a successor.
    Stopped,
    /// The same, but only when the successor grants, unless that needs it.
    StoppedForLong,
    /// It is killed, and started again when the successor grants, unless that needs it.
    Killed,
    /// It keeps running.
    None,
}

impl Harm {
    /// Undoes the harm.
    fn mend(self, group: &mut impl Replicated, master: usize) {
        match self {
            Harm::Stopped | Harm::StoppedForLong => group.servers()[master].resume(),
            Harm::Killed => group.server(master).start_again(),
            Harm::None => {}
        }
    }
}

/// A client relied on a lock.
#[derive(Clone, Copy, Debug)]
struct Hold {
    server: usize,
    fence: u64,
    asked_at: Instant,
    from: Instant,
    until: Instant,
}

/// A client's view of one kind of lock.
#[derive(Default)]
pub(crate) struct History(Mutex<Vec<Hold>>);

impl History {
    fn note(&self, hold: Hold) {
        if hold.from < hold.until {
            self.0.lock().expect("no panic").push(hold);
        }
    }

    fn count_of(&self, server: usize) -> usize {
        self.0.lock().expect("no panic").iter().filter(|hold| hold.server == server).count()
    }

    /// How often the lock was granted while another client relied on it, and how often a fence did
    /// not rise.
    fn faults(&self) -> (usize, usize) {
        let mut holds = self.0.lock().expect("no panic").clone();
        holds.sort_by_key(|hold| hold.from);
        let doubled = holds.iter().enumerate().filter(|(at, hold)| {
            holds[..*at].iter().rev().take(50).any(|before| before.until > hold.from)
        });
        let fallen = holds.iter().enumerate().filter(|(at, hold)| {
            let is_before = |before: &&Hold| before.from <= hold.asked_at;
            holds[..*at].iter().filter(is_before).any(|before| before.fence >= hold.fence)
        });
        (doubled.count(), fallen.count())
    }
}

/// What a client does at a server.
struct Wanted<'a> {
    url: &'a str,
    server: usize,
    /// The prefix of its locks' names.
    prefix: &'a str,
    is_plain: bool,
}

impl Wanted<'_> {
    fn take(&self, connection: &mut redis::Connection, token: &str) -> redis::RedisResult<Value> {
        let name = self.name();
        if self.is_plain {
            return cmd!(*connection, "SET", name, token, "NX", "PX", TTL_MS);
        }
        cmd!(*connection, "LOCK.ACQUIRE", name, token, TTL_MS)
    }

    fn give_back(&self, connection: &mut redis::Connection, token: &str) {
        let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end";
        drop(if self.is_plain {
            cmd!(*connection, "EVAL", script, 1, self.name(), token)
        } else {
            cmd!(*connection, "LOCK.RELEASE", self.name(), token)
        });
    }

    fn name(&self) -> String {
        format!("{}{}", self.prefix, if self.is_plain { "plain" } else { "lock" })
    }

    /// Acquires the lock again and again; its requests to a server that hangs wait in the socket.
    fn work(&self, is_over: &AtomicBool, history: &History) {
        let client = redis::Client::open(self.url).expect("a URL");
        let mut turn = 0;
        while !is_over.load(Ordering::Relaxed) {
            match client.get_connection_with_timeout(Duration::from_secs(20)) {
                Ok(connection) => self.work_over(connection, is_over, &mut turn, history),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The same, until the connection breaks.
    fn work_over(
        &self,
        mut connection: redis::Connection,
        is_over: &AtomicBool,
        turn: &mut u64,
        history: &History,
    ) {
        while !is_over.load(Ordering::Relaxed) {
            *turn += 1;
            let token = format!("{}-{turn}", self.server);
            let asked_at = Instant::now();
            let fence = match self.take(&mut connection, &token) {
                Ok(Value::Int(fence)) => fence.cast_unsigned(),
                Ok(Value::Okay) => 0,
                Ok(_) => {
                    thread::sleep(Duration::from_millis(2));
                    continue;
                }
                Err(error) if error.is_io_error() => break,
                Err(_) => {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                }
            };
            let (from, mut until) = (Instant::now(), asked_at + VALIDITY);
            thread::sleep(Duration::from_millis(*turn % 20));
            if !self.is_plain && turn.is_multiple_of(3) && Instant::now() < until {
                let extended_at = Instant::now();
                let reply = cmd!(connection, "LOCK.EXTEND", self.name(), &token, TTL_MS);
                if reply == Ok(Value::Int(1)) && Instant::now() < until {
                    until = extended_at + VALIDITY;
                }
            }
            let until = until.min(Instant::now());
            history.note(Hold { server: self.server, fence, asked_at, from, until });
            self.give_back(&mut connection, &token);
        }
    }
}

/// One failover.
pub(crate) fn fail_over(group: &mut impl Replicated, turn: usize, harm: Harm, locks: &History) {
    // Granting resumes after two elections and a wait, on a busy machine.
    let grants = |server: usize, what: &str| {
        let before = locks.count_of(server);
        let has_granted = || (locks.count_of(server) > before + 5).then_some(());
        wait_at_most(PATIENCE * 2, what, has_granted);
    };
    let master = group.master();
    grants(master, "the master grants");
    let ballot = group.ballot();
    match harm {
        Harm::Stopped | Harm::StoppedForLong => group.servers()[master].pause(),
        Harm::Killed => group.server(master).kill(),
        Harm::None => {}
    }
    group.await_successor(master, turn);
    // It resumes before it learns of its successor. One of two servers alone grants nothing.
    let is_mended_first = harm == Harm::Stopped || group.servers().len() == 2;
    if is_mended_first {
        harm.mend(group, master);
    }
    // On a busy machine the successor may itself be replaced at once, because it is slow.
    let count =
        || (0..group.servers().len()).filter(|&at| at != master).map(|at| locks.count_of(at));
    let before: usize = count().sum();
    let has_granted = || (count().sum::<usize>() > before + 5).then_some(());
    wait_at_most(PATIENCE * 2, "a successor grants", has_granted);
    // In a Cluster, it has a vote by now, or a master that had one is back.
    drop(ballot);
    if !is_mended_first {
        harm.mend(group, master);
    }
    wait_until("the replicas are back", || {
        let has_all = |server: &Server| {
            let is_online = |number: usize| {
                let line = server.info(&format!("slave{number}"));
                line.is_some_and(|line| line.contains("state=online"))
            };
            (0..group.servers().len() - 1).all(is_online)
        };
        group.servers().iter().any(has_all)
    });
    assert_eq!(locks.faults(), (0, 0), "two held the lock, or a fence fell");
}

/// Whether this server has become a master.
pub(crate) fn is_master(server: &Server) -> bool {
    server.info("role").is_some_and(|role| role == "master")
}

/// Runs clients at all servers of some groups, each with the prefix of its locks, while `disturb`
/// acts on each group. Returns how often a plain key had two holders.
pub(crate) fn storm<G: Replicated + Send>(
    mut groups: Vec<(G, String)>,
    disturb: impl Fn(&mut G, &History) + Sync,
) -> usize {
    let histories: Vec<_> =
        groups.iter().map(|_| (History::default(), History::default())).collect();
    let is_over = AtomicBool::new(false);
    let places = groups.iter().zip(&histories).flat_map(|((group, prefix), history)| {
        let urls = group.servers().iter().map(Server::url).enumerate();
        urls.map(move |(server, url)| (server, url, prefix.clone(), history))
    });
    let places: Vec<_> = places.collect();
    thread::scope(|scope| {
        for (server, url, prefix, (locks, plain)) in &places {
            for (is_plain, history) in [(false, locks), (true, plain)] {
                let wanted = Wanted { url, server: *server, prefix, is_plain };
                let is_over = &is_over;
                scope.spawn(move || wanted.work(is_over, history));
            }
        }
        let disturbed = thread::scope(|scope| {
            let each = groups.iter_mut().zip(&histories).map(|((group, _), (locks, _))| {
                let disturb = &disturb;
                scope.spawn(move || disturb(group, locks))
            });
            let each: Vec<_> = each.collect();
            each.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        is_over.store(true, Ordering::Relaxed);
        let panic = disturbed.into_iter().find_map(Result::err);
        if let Some(panic) = panic {
            for server in groups.iter().flat_map(|(group, _)| group.servers()) {
                eprintln!("---- log\n{}", server.log());
            }
            // A client that waits for a hanging server would keep waiting.
            drop(groups);
            std::panic::resume_unwind(panic);
        }
    });
    for (locks, _) in &histories {
        assert_eq!(locks.faults(), (0, 0));
    }
    let doubled = histories.iter().map(|(_, plain)| plain.faults().0).sum();
    let holds: usize =
        histories.iter().map(|(locks, _)| locks.0.lock().expect("ended").len()).sum();
    println!("SET NX PX was held by two {doubled} times, lockmod never, in {holds} holds");
    doubled
}
