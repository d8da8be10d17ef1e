//! `lockmod top`: a live view of all nodes and locks.
//!
//! The terminal, the keys and the nodes meet here. [`state`] defines what keys mean, and [`view`]
//! what is shown; both do no I/O. Watching costs the nodes at most a tenth of their time.

mod state;
mod view;

use std::io::{IsTerminal, stdout};
use std::sync::Arc;
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};
use ratatui::{DefaultTerminal, Terminal};
use tokio::signal::unix::Signal;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use self::state::{Order, State};
use super::args::Top;
use super::failure::Failure;
use super::signals::{self, Signals};
use super::terminal::{is_orphaned, stop};
use crate::client::{Locker, NodeReport, Survey};

/// After a survey that took long, the pause is this many times as long as the survey.
const REST: u32 = 9;
/// How often the thread that reads keys checks whether they are still wanted.
const KEYS_POLL: Duration = Duration::from_millis(200);

/// What happened.
enum Happening {
    Surveyed(Survey),
    Key(Event),
    ForceReleased(Vec<u8>, Vec<NodeReport>),
    /// A signal, not a key, asks it to stop.
    ToldToStop,
}

pub(super) async fn top(args: Top) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let text = "top needs a terminal; `lockmod status` prints the same once";
        return Err(Failure::usage(text));
    }
    let (mut signals, stops) = (Signals::new()?, signals::stops()?);
    let locker = args.connection.locker()?;
    let (happenings, inbox) = mpsc::channel(16);
    let refresh = Arc::new(Notify::new());
    tokio::spawn(watch(locker.clone(), args, happenings.clone(), Arc::clone(&refresh)));
    let terminal = ratatui::try_init()?;
    let keys = happenings.clone();
    std::thread::spawn(move || read_keys(&keys));
    tokio::spawn(listen(stops, happenings.clone()));
    let result = tokio::select! {
        result = show(terminal, &locker, inbox, happenings, &refresh) => result,
        _ = signals.next() => Ok(()),
    };
    ratatui::restore();
    Ok(result?)
}

/// Asks the nodes repeatedly.
async fn watch(
    locker: Locker,
    args: Top,
    happenings: mpsc::Sender<Happening>,
    refresh: Arc<Notify>,
) {
    loop {
        let started_at = Instant::now();
        let survey = locker.survey(args.limit).await;
        let took = started_at.elapsed();
        if happenings.send(Happening::Surveyed(survey)).await.is_err() {
            return;
        }
        // A survey of nodes that do not answer takes long without keeping them busy, so the rest is
        // limited.
        let rest = took.saturating_mul(REST).min(args.every.saturating_mul(REST)).max(args.every);
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            () = refresh.notified() => {}
        }
    }
}

/// Passes on requests to stop that do not come from keys.
async fn listen(mut stops: Signal, happenings: mpsc::Sender<Happening>) {
    while stops.recv().await.is_some() {
        if happenings.send(Happening::ToldToStop).await.is_err() {
            return;
        }
    }
}

fn read_keys(happenings: &mpsc::Sender<Happening>) {
    while !happenings.is_closed() {
        let is_there = event::poll(KEYS_POLL);
        let event = match is_there {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        // A terminal that is gone also sends HUP.
        let Ok(event) = event else { return };
        if happenings.blocking_send(Happening::Key(event)).is_err() {
            return;
        }
    }
}

/// Takes in what has happened, and returns what to do.
fn heard(state: &mut State, happening: Happening, refresh: &Notify) -> Order {
    match happening {
        Happening::Surveyed(survey) => {
            state.surveyed(survey);
            Order::GoOn
        }
        Happening::Key(Event::Key(key)) if key.kind == KeyEventKind::Press => state.pressed(key),
        // Above all a new size, after which everything is drawn again.
        Happening::Key(_) => Order::GoOn,
        Happening::ForceReleased(name, reports) => {
            state.force_released(&name, &reports);
            refresh.notify_one();
            Order::GoOn
        }
        Happening::ToldToStop => Order::Stop,
    }
}

/// Shows what happens until the user quits.
async fn show(
    mut terminal: DefaultTerminal,
    locker: &Locker,
    mut inbox: mpsc::Receiver<Happening>,
    happenings: mpsc::Sender<Happening>,
    refresh: &Notify,
) -> std::io::Result<()> {
    let mut state = State::default();
    loop {
        terminal.draw(|frame| view::draw(frame, &state))?;
        let happening = inbox.recv().await;
        match happening.map_or(Order::Quit, |happening| heard(&mut state, happening, refresh)) {
            Order::GoOn => {}
            Order::Quit => return Ok(()),
            Order::Refresh => refresh.notify_one(),
            Order::Stop => pause(&mut terminal)?,
            Order::ForceRelease(name) => {
                let (locker, happenings) = (locker.clone(), happenings.clone());
                tokio::spawn(async move {
                    let reports = locker.force_release(&name).await;
                    // The receiver is gone if the user has quit.
                    let _ = happenings.send(Happening::ForceReleased(name, reports)).await;
                });
            }
        }
    }
}

/// Leaves the terminal to the shell, as it was, until the shell continues this process.
fn pause(terminal: &mut DefaultTerminal) -> std::io::Result<()> {
    if is_orphaned() {
        return Ok(());
    }
    terminal.show_cursor()?;
    ratatui::try_restore()?;
    stop();
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)?;
    // A new one, so that everything is drawn.
    *terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
    Ok(())
}
