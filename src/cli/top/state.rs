//! What `lockmod top` remembers, and what its keys mean.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::super::out::cut;
use super::super::rows::{self, LockOrder};
use crate::client::{LockSurvey, NodeReport, Survey, Vote};

/// For how many surveys the result of an order stays: after that it is about another time than what
/// is shown.
const SURVEYS_MAX: u8 = 10;
/// The most columns of a name in a question or a message: the important part follows it.
pub(super) const NAME_MAX: usize = 40;

/// What is shown.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) survey: Option<Survey>,
    /// The lock under the cursor, whatever becomes of the other locks.
    selected: Option<Vec<u8>>,
    pub(super) order: LockOrder,
    /// Only locks with this text in their name or holder are shown; if it is empty, all are.
    pub(super) filter: String,
    pub(super) input: Input,
    /// The result of the last order.
    pub(super) message: String,
    /// How many surveys were taken since that order.
    surveys: u8,
}

/// What the keys are used for at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Input {
    /// Moving around.
    #[default]
    Look,
    /// Typing the filter.
    Filter,
    /// Reading what the keys do.
    Help,
    /// The question whether to take this lock from its holder.
    Ask(Vec<u8>),
}

/// What to do after an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    GoOn,
    Refresh,
    /// Give the terminal back to the shell until it continues the program.
    Stop,
    ForceRelease(Vec<u8>),
    Quit,
}

impl State {
    /// The nodes have answered.
    pub(super) fn surveyed(&mut self, survey: Survey) {
        let place = self.selection();
        self.survey = Some(survey);
        self.keep_selection(place);
        self.surveys = self.surveys.saturating_add(1);
        if self.surveys > SURVEYS_MAX {
            self.message.clear();
        }
    }

    /// A key was pressed.
    pub(super) fn pressed(&mut self, key: KeyEvent) -> Order {
        self.message.clear();
        let code = match key.code {
            KeyCode::Char(c) if key.modifiers.contains(KeyModifiers::CONTROL) => match c {
                'c' => return Order::Quit,
                'z' => return Order::Stop,
                // Some terminals send this for Backspace.
                'h' => KeyCode::Backspace,
                _ => return Order::GoOn,
            },
            code => code,
        };
        match std::mem::take(&mut self.input) {
            Input::Look => self.pressed_looking(code),
            Input::Filter => {
                self.pressed_filtering(code);
                Order::GoOn
            }
            // Any key ends it.
            Input::Help => Order::GoOn,
            Input::Ask(name) => match code {
                KeyCode::Char('y' | 'Y') => Order::ForceRelease(name),
                _ => Order::GoOn,
            },
        }
    }

    fn pressed_looking(&mut self, code: KeyCode) -> Order {
        match code {
            KeyCode::Char('q') => return Order::Quit,
            KeyCode::Char('r') => return Order::Refresh,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.input = Input::Help,
            KeyCode::Char('/') => self.input = Input::Filter,
            // Esc clears the filter, and never quits.
            KeyCode::Esc => self.set_filter(String::new()),
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-10),
            KeyCode::PageDown => self.go(10),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX),
            KeyCode::Char('d') | KeyCode::Delete => {
                if let Some(name) = self.selected.clone().filter(|_| self.selection().is_some()) {
                    self.input = Input::Ask(name);
                }
            }
            _ => {}
        }
        Order::GoOn
    }

    fn pressed_filtering(&mut self, code: KeyCode) {
        let mut filter = self.filter.clone();
        match code {
            KeyCode::Enter => return,
            KeyCode::Esc => return self.set_filter(String::new()),
            KeyCode::Backspace => drop(filter.pop()),
            KeyCode::Char(c) => filter.push(c),
            _ => {}
        }
        self.input = Input::Filter;
        self.set_filter(filter);
    }

    fn set_filter(&mut self, filter: String) {
        let place = self.selection();
        self.filter = filter;
        self.keep_selection(place);
    }

    /// A lock was deleted, on nodes where that was possible.
    pub(super) fn force_released(&mut self, name: &[u8], reports: &[NodeReport]) {
        let name = cut(&rows::shown_name(name), NAME_MAX);
        self.surveys = 0;
        self.message = match reports.iter().all(|report| report.vote == Vote::NotHeld) {
            true => format!("nobody held '{name}' any more"),
            false => format!("'{name}' was {}", rows::deleted_on(reports)),
        };
    }

    /// The locks that are shown, in their order.
    pub(super) fn locks(&self) -> Vec<(&[u8], &LockSurvey)> {
        let Some(survey) = &self.survey else { return Vec::new() };
        let mut locks = rows::busy_locks(survey, self.order);
        let filter = self.filter.to_lowercase();
        locks.retain(|(name, lock)| {
            let holder = lock.best().and_then(|best| best.label.as_deref()).unwrap_or_default();
            [rows::shown_name(name), rows::shown(holder.as_bytes())]
                .iter()
                .any(|text| text.to_lowercase().contains(&filter))
        });
        locks
    }

    /// The row of the selected lock.
    pub(super) fn selection(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.locks().iter().position(|(name, _)| name == selected)
    }

    /// If the selected lock is gone, selects the next one.
    fn keep_selection(&mut self, place: Option<usize>) {
        if self.selection().is_none() {
            self.select(place.unwrap_or(0));
        }
    }

    fn select(&mut self, place: usize) {
        let locks = self.locks();
        let place = place.min(locks.len().saturating_sub(1));
        self.selected = locks.get(place).map(|(name, _)| name.to_vec());
    }

    fn go(&mut self, by: isize) {
        self.select(self.selection().map_or(0, |place| place.saturating_add_signed(by)));
    }
}
