//! The results of calls, and how they get to the event loop.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockmod_host::{Call, Failure, Holding, NodeState, NodeVote, Unit};
use napi::Status;
use napi::bindgen_prelude::Function;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi_derive::napi;

use crate::lease::Lease;

/// The result of a call, before it is an object.
pub(crate) enum Value {
    Nothing,
    Leases(Vec<Holding>),
    Votes(Vec<NodeVote>),
    States(Vec<NodeState>),
}

pub(crate) type Outcome = Result<Value, Failure>;

/// It does not keep the event loop alive: `lib/port.js` does, while a call waits.
type Ring = ThreadsafeFunction<(), (), (), Status, false, true>;

/// Where results of calls arrive for an event loop.
#[napi]
pub struct Port {
    port: lockmod_host::Port<Outcome>,
    /// The calls in progress.
    calls: Mutex<HashMap<u64, Call>>,
}

impl Port {
    /// Starts a call, to be flushed, and returns its number. Only the event loop's thread does
    /// so.
    pub(crate) fn run(
        &self,
        call: Result<impl Future<Output = Outcome> + Send + 'static, Failure>,
    ) -> f64 {
        let number = match call.and_then(|call| self.port.start(call)) {
            Ok(call) => {
                let number = call.number;
                self.calls().insert(number, call);
                number
            }
            Err(failure) => self.port.put(Err(failure)),
        };
        // Exact for longer than any program runs.
        number as f64
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[napi]
impl Port {
    /// A port that calls `ring` on the event loop when there is something to take.
    #[napi(constructor)]
    pub fn new(ring: Function<'_, (), ()>) -> napi::Result<Port> {
        let builder = ring.build_threadsafe_function::<()>();
        let ring: Ring = builder.callee_handled::<false>().weak::<true>().build()?;
        // A loop that is ending no longer reacts.
        let ring = move || {
            let _ = ring.call((), ThreadsafeFunctionCallMode::NonBlocking);
        };
        Ok(Port { port: lockmod_host::Port::new(ring), calls: Mutex::default() })
    }

    /// Hands the started calls to the background thread.
    #[napi]
    pub fn flush(&self) {
        self.port.flush();
    }

    /// As `flush`, but a lone call may run on this thread, for a moment.
    #[napi]
    pub fn drive(&self) {
        self.port.drive();
    }

    /// As `flush`, for calls that wait for something.
    #[napi]
    pub fn leave(&self) {
        self.port.leave();
    }

    /// The results that have arrived.
    #[napi]
    pub fn take(&self) -> Vec<Done> {
        let done = self.port.take();
        let mut calls = self.calls();
        done.into_iter()
            .map(|(number, outcome)| {
                calls.remove(&number);
                Done::new(number, outcome)
            })
            .collect()
    }

    /// Drops the call, if it is not done.
    #[napi]
    pub fn cancel(&self, number: f64) {
        // Numbers come from `run`.
        if let Some(call) = self.calls().remove(&(number as u64)) {
            call.cancel();
        }
    }
}

/// A call that is done: its number and its result.
#[napi(object, object_from_js = false)]
#[derive(Default)]
pub struct Done {
    /// The number that the call returned.
    pub number: f64,
    /// Why it failed.
    pub failure: Option<Failed>,
    /// What was acquired.
    pub leases: Option<Vec<Lease>>,
    /// Each node's vote.
    pub votes: Option<Vec<Vote>>,
    /// Each node's report about a lock.
    pub states: Option<Vec<State>>,
}

impl Done {
    fn new(number: u64, outcome: Outcome) -> Done {
        let mut done = Done { number: number as f64, ..Done::default() };
        match outcome {
            Ok(Value::Nothing) => {}
            Ok(Value::Leases(holdings)) => {
                done.leases = Some(holdings.into_iter().map(Lease::new).collect());
            }
            Ok(Value::Votes(votes)) => done.votes = Some(votes.iter().map(Vote::from).collect()),
            Ok(Value::States(states)) => {
                done.states = Some(states.into_iter().map(State::from).collect());
            }
            Err(failure) => done.failure = Some(failure.into()),
        }
        done
    }
}

/// A failure; `lib/errors.js` has the classes of errors, and decides which one it is.
#[napi(object, object_from_js = false)]
pub struct Failed {
    /// What happened, in one word.
    pub kind: &'static str,
    /// One line for an operator.
    pub text: String,
    /// Each node's vote.
    pub nodes: Vec<Vote>,
    /// How many milliseconds the acquisition was tried.
    pub waited: Option<f64>,
    /// How often all nodes were asked.
    pub attempts: Option<u32>,
    /// Why the lease has ended.
    pub reason: Option<&'static str>,
    /// Whether the same call may succeed later.
    pub is_retryable: bool,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        Failed {
            kind: failure.kind.word(),
            nodes: failure.nodes.iter().map(Vote::from).collect(),
            waited: failure.tried.map(|(waited, _)| milliseconds(waited)),
            attempts: failure.tried.map(|(_, attempts)| attempts),
            reason: failure.reason,
            is_retryable: failure.is_retryable,
            text: failure.text,
        }
    }
}

/// One node's vote: JavaScript's NodeVote.
#[napi(object, object_from_js = false)]
pub struct Vote {
    /// The node's address, without password.
    pub node: String,
    /// The master that was asked last, if the node is a Cluster or a group under Sentinel, and it
    /// is known.
    pub master: Option<String>,
    /// In one word.
    pub vote: &'static str,
    /// In words for people.
    pub text: String,
    /// The fence that it granted.
    pub fence: Option<f64>,
    /// The label of the holder there.
    pub label: Option<String>,
    /// How long that lease lasts unless it is extended, in milliseconds.
    pub left: Option<f64>,
    /// How long that holder has had the lock, in milliseconds.
    pub held_for: Option<f64>,
}

impl From<&NodeVote> for Vote {
    fn from(said: &NodeVote) -> Vote {
        // The compiler asks for each field.
        let NodeVote { node, master, vote, text, fence, label, left, held_for } = said.clone();
        let fence = fence.map(|fence| fence as f64);
        let (left, held_for) = (left.map(milliseconds), held_for.map(milliseconds));
        Vote { node, master, vote, text, fence, label, left, held_for }
    }
}

/// What one node reports about a lock: JavaScript's NodeInfo.
#[napi(object, object_from_js = false)]
pub struct State {
    /// The node's vote, if it reports nothing.
    pub vote: Option<Vote>,
    /// The node's address, without password.
    pub node: String,
    /// `free`, `held` or `reserved`.
    pub state: String,
    /// The highest fence issued.
    pub fence: f64,
    /// The holder's label.
    pub label: Option<String>,
    /// How long the lease lasts unless it is extended, in milliseconds.
    pub left: Option<f64>,
    /// How long it has been held, in milliseconds.
    pub held_for: Option<f64>,
    /// How many wait in line for it.
    pub waiters: f64,
    /// How many readers hold it.
    pub readers: f64,
    /// The labels of the readers who have held it longest.
    pub reader_labels: Vec<String>,
    /// How many of those in line wait as readers.
    pub waiting_readers: f64,
    /// How long the first in line has been waiting, in milliseconds.
    pub first_waiting: Option<f64>,
}

impl From<NodeState> for State {
    fn from(told: NodeState) -> State {
        // The compiler asks for each field.
        let NodeState {
            vote,
            node,
            state,
            fence,
            label,
            left,
            held_for,
            waiters,
            readers,
            reader_labels,
            waiting_readers,
            first_waiting,
        } = told;
        State {
            vote: vote.as_ref().map(Vote::from),
            node,
            state,
            fence: fence as f64,
            label,
            left: left.map(milliseconds),
            held_for: held_for.map(milliseconds),
            waiters: waiters as f64,
            readers: readers as f64,
            reader_labels,
            waiting_readers: waiting_readers as f64,
            first_waiting: first_waiting.map(milliseconds),
        }
    }
}

/// A length of time as JavaScript counts it: every one that a program sees goes through here.
pub(crate) fn milliseconds(length: Duration) -> f64 {
    Unit::Milliseconds.count(length)
}
