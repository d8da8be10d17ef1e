//! One node, many connections that break, and every answer recorded: is it a fenced lock?

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::{Cmd, Connection, RedisResult, Value};

use crate::common::{Proxy, Server, wait_for};
use crate::history::Micros;
use crate::linear::{Action, Operation, check_lock};

const CLIENTS: usize = 4;
/// Each key is used for this many calls, so that the search stays short.
const CALLS_PER_KEY: usize = 40;
const KEYS: usize = 12;
/// A call without an answer for this long is given up, with its connection.
const PATIENCE: Duration = Duration::from_millis(300);

/// The clients' calls by key, with their results.
#[derive(Default)]
struct Notes(Mutex<Vec<Vec<Operation>>>);

struct Client<'a> {
    proxy: &'a Proxy,
    conn: Option<Connection>,
    random: StdRng,
    start: Instant,
    tokens: &'a AtomicUsize,
    /// The last token that was used for the current key.
    token: usize,
}

#[test]
fn one_node_is_a_fenced_lock_to_whoever_sees_its_answers() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let seed = crate::seed();
    println!("single node: LOCKMOD_SEED={seed}");
    let notes = Notes(Mutex::new(vec![Vec::new(); KEYS]));
    let (tokens, is_over, start) = (AtomicUsize::new(0), AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let random = StdRng::seed_from_u64(seed ^ ((number as u64 + 1) << 32));
                let (proxy, tokens) = (&proxy, &tokens);
                let client = Client { proxy, conn: None, random, start, tokens, token: 0 };
                let notes = &notes;
                scope.spawn(move || client.run(notes))
            })
            .collect();
        scope.spawn(|| {
            let mut random = StdRng::seed_from_u64(seed);
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(random.random_range(5..60)));
                proxy.cut();
            }
        });
        let ended: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a client panicked");
    });
    let all = notes.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    let count = |is: fn(&Operation) -> bool| all.iter().flatten().filter(|one| is(one)).count();
    let unknown = count(|one| one.returned_at.is_none());
    let granted = count(|one| matches!(one.action, Action::Acquired { .. }));
    let read = count(|one| matches!(one.action, Action::Acquired { is_reader: true, .. }));
    let downgraded = count(|one| matches!(one.action, Action::Downgraded { .. }));
    println!(
        "single node: {} calls, {granted} grants, {read} to readers, {downgraded} downgraded, \
         {unknown} unknown",
        count(|_| true)
    );
    let is_enough = granted > 20 && read > 5 && downgraded > 0 && unknown > 0;
    assert!(is_enough, "hardly anything was tested");
    for operations in all {
        let text = check_lock(operations);
        assert_eq!(text, None, "LOCKMOD_SEED={seed}");
    }
}

impl Client<'_> {
    fn run(mut self, notes: &Notes) {
        for key in 0..KEYS {
            self.token = self.tokens.fetch_add(1, Ordering::Relaxed);
            for _ in 0..CALLS_PER_KEY / CLIENTS {
                if let Some(operation) = self.call(key) {
                    let mut notes = notes.0.lock().unwrap_or_else(PoisonError::into_inner);
                    notes[key].push(operation);
                }
                let pause = self.random.random_range(0..8);
                thread::sleep(Duration::from_millis(pause));
            }
        }
    }

    fn now(&self) -> Micros {
        u64::try_from(self.start.elapsed().as_micros()).expect("a test is short")
    }

    /// One call; `None` if it certainly had no effect.
    fn call(&mut self, key: usize) -> Option<Operation> {
        let name = format!("single-{key}");
        let kind = self.random.random_range(0..10);
        if kind < 4 && self.random.random_bool(0.7) {
            self.token = self.tokens.fetch_add(1, Ordering::Relaxed);
        }
        let (token, ttl_ms) = (self.token, self.random.random_range(5..80_u64));
        let text = format!("token-{token}");
        let command = |name_of: &str| redis::cmd(name_of).arg(&name).to_owned();
        // A token keeps its mode: a reader's would be refused as a writer's.
        let is_reader = token % 5 < 2;
        let downgrades = (7..9).contains(&kind) && !is_reader && self.random.random_bool(0.7);
        let mut command = match kind {
            0..4 => command("LOCK.ACQUIRE").arg(&text).arg(ttl_ms).to_owned(),
            4..7 => command("LOCK.RELEASE").arg(&text).to_owned(),
            7..9 => command("LOCK.EXTEND").arg(&text).arg(ttl_ms).to_owned(),
            _ => command("LOCK.FENCE"),
        };
        if kind < 4 && is_reader || (7..9).contains(&kind) && (is_reader || downgrades) {
            command.arg("SHARED");
        }
        self.connect();
        let called_at = self.now();
        // The lease began after the call.
        let ends_at = called_at + ttl_ms * 1_000;
        let answer = self.send(&command);
        let returned_at = self.now();
        if answer.as_ref().is_err_and(|error| error.code() == Some("NOUPGRADE")) {
            return None;
        }
        let unknown = answer.is_err();
        let value = answer.unwrap_or(Value::Nil);
        let action = match (kind, value) {
            (0..4, _) if unknown => Action::Acquired { token, is_reader, fence: None, ends_at },
            (0..4, Value::Int(fence)) => {
                let fence = Some(fence.cast_unsigned());
                Action::Acquired { token, is_reader, fence, ends_at }
            }
            (0..4, Value::Nil) => Action::Refused { token, is_reader },
            (4..7, _) if unknown => Action::Released { token },
            (4..7, Value::Int(1)) => Action::Released { token },
            (4..7, Value::Int(0) | Value::Nil) => Action::NotReleased { token },
            (7..9, _) if unknown && downgrades => Action::Downgraded { token, ends_at },
            (7..9, Value::Int(1)) if downgrades => Action::Downgraded { token, ends_at },
            (7..9, _) if unknown => Action::Extended { token, ends_at },
            (7..9, Value::Int(1)) => Action::Extended { token, ends_at },
            (7..9, Value::Int(0) | Value::Nil) => Action::NotExtended { token },
            (_, _) if unknown => return None,
            (_, Value::Int(fence)) => Action::Read { fence: fence.cast_unsigned() },
            (_, other) => panic!("{other:?} is no answer"),
        };
        let returned_at = (!unknown).then_some(returned_at);
        Some(Operation { called_at, returned_at, action })
    }

    fn connect(&mut self) {
        if self.conn.is_none() {
            let url = self.proxy.url();
            let conn = wait_for("the proxy lets a connection through", || {
                let client = redis::Client::open(url.as_str()).expect("a good address");
                let conn = client.get_connection_with_timeout(PATIENCE).ok()?;
                conn.set_read_timeout(Some(PATIENCE)).ok()?;
                Some(conn)
            });
            self.conn = Some(conn);
        }
    }

    fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let conn = self.conn.as_mut().expect("connected just before");
        let answer = command.query(conn);
        if answer.is_err() {
            self.conn = None;
        }
        answer
    }
}
