//! What `lockmod top` remembers, and what its keys mean.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::super::rows;
use crate::client::{NodeReport, Survey, Vote};

/// What is shown.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) survey: Option<Survey>,
    /// Where the cursor is: on a lock, whatever becomes of the others around it.
    selected: Option<Vec<u8>>,
    /// The lock that the user is asked about.
    pub(super) asked: Option<Vec<u8>>,
    /// What came of the last order.
    pub(super) message: String,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    GoOn,
    Refresh,
    ForceRelease(Vec<u8>),
    Quit,
}

impl State {
    /// The nodes have answered.
    pub(super) fn surveyed(&mut self, survey: Survey) {
        // The place of a lock that is gone is taken by the next one.
        let old = self.selection();
        self.survey = Some(survey);
        if self.selection().is_none() {
            let names = self.names();
            let place = old.unwrap_or(0).min(names.len().saturating_sub(1));
            self.selected = names.get(place).cloned();
        }
    }

    /// A key was pressed.
    pub(super) fn pressed(&mut self, key: KeyEvent) -> Order {
        self.message.clear();
        let is_interrupt =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        if is_interrupt {
            return Order::Quit;
        }
        if let Some(name) = self.asked.take() {
            return match key.code {
                KeyCode::Char('y' | 'Y') => Order::ForceRelease(name),
                _ => Order::GoOn,
            };
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Order::Quit,
            KeyCode::Char('r') => return Order::Refresh,
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-10),
            KeyCode::PageDown => self.go(10),
            KeyCode::Home => self.go(isize::MIN),
            KeyCode::End => self.go(isize::MAX),
            KeyCode::Char('d') | KeyCode::Delete => self.asked.clone_from(&self.selected),
            _ => {}
        }
        Order::GoOn
    }

    /// A lock was deleted, where that was possible.
    pub(super) fn force_released(&mut self, name: &[u8], reports: &[NodeReport]) {
        let deleted = reports.iter().filter(|report| report.vote == Vote::Confirmed).count();
        let failed: Vec<String> = reports
            .iter()
            .filter(|report| !matches!(report.vote, Vote::Confirmed | Vote::NotHeld))
            .map(ToString::to_string)
            .collect();
        let name = rows::shown(name);
        self.message = format!("'{name}' was deleted on {deleted} of {} nodes", reports.len());
        if !failed.is_empty() {
            self.message += &format!("; {}", failed.join("; "));
        }
    }

    /// The row of the selected lock.
    pub(super) fn selection(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.names().iter().position(|name| name == selected)
    }

    fn names(&self) -> Vec<Vec<u8>> {
        let Some(survey) = &self.survey else { return Vec::new() };
        rows::busy_locks(survey).into_iter().map(|(name, _)| name.to_vec()).collect()
    }

    fn go(&mut self, by: isize) {
        let names = self.names();
        let last = names.len().saturating_sub(1);
        let place = self.selection().map_or(0, |place| place.saturating_add_signed(by)).min(last);
        self.selected = names.get(place).cloned();
    }
}
