//! Failovers with real Sentinels.

use crate::common::{Group, Server, wait_for, wait_until};
use crate::failovers::{self, Harm, Replicated, fail_over, is_master, member};

impl Replicated for Group {
    fn servers(&self) -> &[Server] {
        &self.servers
    }

    fn server(&mut self, index: usize) -> &mut Server {
        &mut self.servers[index]
    }

    fn master(&self) -> usize {
        wait_for("the Sentinels agree", || Group::master(self))
    }

    fn await_successor(&self, master: usize, _: usize) {
        let next = self.wait_for_another_than(master);
        wait_until("the replica is promoted", || is_master(&self.servers[next]));
    }
}

fn storm(turns: usize) -> usize {
    let group = (Group::start(2, || member(2)), String::new());
    failovers::storm(vec![group], |group, locks| {
        for turn in 0..turns {
            let harms = [Harm::Stopped, Harm::Killed, Harm::StoppedForLong];
            fail_over(group, turn, harms[turn % 3], locks);
        }
        println!("{turns} failovers by Sentinels");
    })
}

#[test]
fn no_failover_by_sentinels_gives_the_lock_to_two() {
    storm(3);
}

#[test]
#[ignore = "ten minutes: make failovers"]
fn fifty_failovers_by_sentinels_give_the_lock_to_two_never_and_a_plain_key_often() {
    assert!(storm(51) > 0, "the storm shows what it is there for");
}
