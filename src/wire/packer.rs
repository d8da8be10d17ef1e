//! The arguments of a command that is being built.

use super::request::{Onward, Queue, WaitMode};
use super::resp;
use super::spec::keyword;
use crate::engine::{Fencing, Mode};

/// No command has more arguments than this, its name and its key included.
pub const ARGS_MAX: usize = 15;

/// Space for two numbers.
pub(super) type Rooms<'b> = (&'b mut itoa::Buffer, &'b mut itoa::Buffer);

/// The arguments of a command that is being built.
pub(super) struct Packer<'b> {
    args: [&'b [u8]; ARGS_MAX],
    count: usize,
}

impl<'b> Packer<'b> {
    pub(super) const fn new() -> Packer<'b> {
        Packer { args: [b""; ARGS_MAX], count: 0 }
    }

    /// The bytes of the command.
    pub(super) fn bytes(&self) -> Vec<u8> {
        resp::pack(&self.args[..self.count])
    }

    pub(super) fn push(&mut self, arg: &'b [u8]) {
        self.args[self.count] = arg;
        self.count += 1;
    }

    pub(super) fn extend<const N: usize>(&mut self, args: [&'b [u8]; N]) {
        args.into_iter().for_each(|arg| self.push(arg));
    }

    pub(super) fn mode(&mut self, mode: Mode) {
        if mode.is_shared() {
            self.push(keyword::SHARED.as_bytes());
        }
    }

    /// Adds the label, unless it is empty.
    pub(super) fn label(&mut self, label: &'b [u8]) {
        if !label.is_empty() {
            self.extend([keyword::LABEL.as_bytes(), label]);
        }
    }

    pub(super) fn fencing(&mut self, fencing: &Fencing<'b>, room: &'b mut itoa::Buffer) {
        let (fence, repair) = match fencing {
            Fencing::Keep => return,
            Fencing::Raise(fence) => (fence, None),
            Fencing::Repair { fence, label } => (fence, Some(label)),
        };
        self.extend([keyword::FENCE.as_bytes(), room.format(fence.get()).as_bytes()]);
        if let Some(label) = repair {
            self.push(keyword::REPAIR.as_bytes());
            self.label(label);
        }
    }

    pub(super) fn waiting(&mut self, waiting: &WaitMode<'b>, ticket: &'b [u8], rooms: Rooms<'b>) {
        match waiting {
            WaitMode::Not => {}
            WaitMode::Block(wait) => {
                let wait = rooms.0.format(wait.get()).as_bytes();
                self.extend([keyword::WAIT.as_bytes(), wait]);
            }
            WaitMode::Queue(queue) => self.queue(queue, ticket, rooms),
        }
    }

    pub(super) fn onward(&mut self, onward: &Onward<'b>, ticket: &'b [u8], rooms: Rooms<'b>) {
        match onward {
            Onward::Unsaid => {}
            Onward::HandedOver => self.push(keyword::HANDOVER.as_bytes()),
            Onward::Queue(mode, queue) => {
                self.mode(*mode);
                self.queue(queue, ticket, rooms);
            }
        }
    }

    pub(super) fn queue(&mut self, queue: &Queue<'b>, ticket: &'b [u8], (room, more): Rooms<'b>) {
        let wait = room.format(queue.wait.get()).as_bytes();
        self.extend([keyword::QUEUE.as_bytes(), wait, keyword::TICKET.as_bytes(), ticket]);
        self.extend([keyword::NOTIFY.as_bytes(), queue.channel]);
        if let Some(number) = queue.grant {
            self.extend([keyword::GRANT.as_bytes(), more.format(number).as_bytes()]);
        }
    }
}
