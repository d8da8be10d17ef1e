//! A Redis Cluster of a few masters.

use redis::{FromRedisValue, Value, from_redis_value};

use super::{Builder, Server, start_nodes, wait_for};

/// Masters with about the same number of slots each.
#[derive(Debug)]
pub struct Cluster {
    pub masters: Vec<Server>,
}

#[track_caller]
fn told<T: FromRedisValue>(server: &Server, line: &str) -> T {
    let reply = server.run(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    from_redis_value(reply).unwrap_or_else(|error| panic!("{line}: {error}"))
}

impl Cluster {
    /// This many masters with these settings.
    #[track_caller]
    pub fn start(count: usize, builder: impl Fn() -> Builder + Sync) -> Cluster {
        let masters = start_nodes(count, |_| builder().in_cluster());
        for (index, master) in masters.iter().enumerate() {
            let first = 16_384 * index / count;
            let last = 16_384 * (index + 1) / count - 1;
            master.run(&format!("CLUSTER ADDSLOTSRANGE {first} {last}")).expect("free slots");
            master.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)).expect("no epoch yet");
        }
        let cluster = Cluster { masters };
        cluster.masters[1..].iter().for_each(|master| cluster.meet(master));
        cluster.wait_until_ok(count);
        cluster
    }

    /// The first master meets another server.
    pub fn meet(&self, server: &Server) {
        let (port, bus) = (server.peer_port(), server.bus_port());
        self.masters[0].run(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}")).expect("it obeys");
    }

    /// Adds a master with these settings that has no slots.
    #[track_caller]
    pub fn add_idle(&mut self, builder: Builder) {
        let server = builder.in_cluster().start();
        self.meet(&server);
        self.masters.push(server);
        let id = self.id(self.masters.len() - 1);
        wait_for("all know it", || {
            let knows = |master: &Server| told::<String>(master, "CLUSTER NODES").contains(&id);
            let is_ok = |master: &Server| {
                told::<String>(master, "CLUSTER INFO").contains("cluster_state:ok")
            };
            self.masters.iter().all(|it| knows(it) && is_ok(it)).then_some(())
        });
    }

    /// Adds this many servers with these settings as replicas of each master. Returns them by
    /// master.
    #[track_caller]
    pub fn start_replicas(
        &self,
        each: usize,
        builder: impl Fn() -> Builder + Sync,
    ) -> Vec<Vec<Server>> {
        let mut replicas = start_nodes(each * self.masters.len(), |_| builder().in_cluster());
        replicas.iter().for_each(|replica| self.meet(replica));
        self.wait_until_ok(self.masters.len() + replicas.len());
        let of_master = |index: usize| -> Vec<Server> {
            let of_one: Vec<_> = replicas.drain(..each).collect();
            of_one.iter().for_each(|replica| self.follow(replica, index));
            of_one
        };
        (0..self.masters.len()).map(of_master).collect()
    }

    /// This server, which all know, replicates one of the masters.
    #[track_caller]
    fn follow(&self, replica: &Server, index: usize) {
        let id = self.id(index);
        wait_for("the replica knows its master", || {
            replica.run(&format!("CLUSTER REPLICATE {id}")).ok()
        });
        self.masters[index].wait_for_replica(replica);
        // Otherwise it would take the place of a master without slots.
        let has_heard = || told::<String>(replica, "CLUSTER INFO").contains("_assigned:16384");
        wait_for("it knows whose the slots are", || has_heard().then_some(()));
        let own: String = told(replica, "CLUSTER MYID");
        let is_known = |master: &Server| {
            let nodes: String = told(master, "CLUSTER NODES");
            nodes
                .lines()
                .any(|line| line.starts_with(&own) && line.contains(&format!("slave {id}")))
        };
        wait_for("all know it as a replica", || self.masters.iter().all(is_known).then_some(()));
    }

    /// A prefix of names that are at this master.
    pub fn tag_at(&self, index: usize) -> String {
        let tags = (0..).map(|number| format!("{{{number}}}"));
        let found = tags.into_iter().find(|tag| self.owner(tag) == index);
        found.expect("each master has slots")
    }

    /// Waits until all masters know this many servers, have all slots between them, and agree that
    /// they have a vote, and nobody else.
    #[track_caller]
    fn wait_until_ok(&self, known: usize) {
        let known = format!("cluster_known_nodes:{known}\r");
        wait_for("the masters know each other", || {
            let is_ok = |master: &Server| {
                let info: String = told(master, "CLUSTER INFO");
                let agrees = master.knows_voters(self.masters.len() as u64);
                info.contains("cluster_state:ok") && info.contains(&known) && agrees
            };
            // They decide in the slots that they were given, or lack only replicas.
            let decides = |index: usize| {
                let line = format!("LOCK.EXTEND {} nobody 100", self.tag_at(index));
                let answer = self.masters[index].run(&line);
                !answer.is_err_and(|error| error.code() == Some("TRYAGAIN"))
            };
            let are_ok = self.masters.iter().all(is_ok);
            (are_ok && (0..self.masters.len()).all(decides)).then_some(())
        });
    }

    /// The URL of the Cluster, by its first two masters.
    pub fn url(&self) -> String {
        let place = |master: &Server| format!("127.0.0.1:{}", master.port());
        let places: Vec<String> = self.masters.iter().take(2).map(place).collect();
        format!("redis+cluster://{}", places.join(","))
    }

    /// Which master has this lock, when all masters agree.
    #[track_caller]
    pub fn owner(&self, name: &str) -> usize {
        wait_for("the masters agree which of them has the lock", || {
            // They may leave out the host, which is the same.
            let place = |index: usize| self.masters[index].port().to_string();
            let named = |(index, master): (usize, &Server)| match master
                .run(&format!("LOCK.FENCE {name}"))
            {
                Ok(_) => Some(place(index)),
                Err(error) => Some(error.detail()?.rsplit(':').next()?.to_owned()),
            };
            let all: Option<Vec<String>> = self.masters.iter().enumerate().map(named).collect();
            let all = all.filter(|all| all.iter().all(|other| *other == all[0]))?;
            (0..self.masters.len()).find(|index| place(*index) == all[0])
        })
    }

    /// The node id of a master.
    fn id(&self, index: usize) -> String {
        told(&self.masters[index], "CLUSTER MYID")
    }

    /// Begins to move the slot of a lock.
    pub fn begin_to_move(&self, name: &str, to: usize) -> u16 {
        let from = self.owner(name);
        let slot: u16 = told(&self.masters[from], &format!("CLUSTER KEYSLOT {name}"));
        let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.id(from));
        self.masters[to].run(&importing).expect("it imports");
        let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.id(to));
        self.masters[from].run(&migrating).expect("it migrates");
        slot
    }

    /// Moves the slot's keys.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (&self.masters[from], &self.masters[to]);
        loop {
            let keys: Vec<String> = told(source, &format!("CLUSTER GETKEYSINSLOT {slot} 100"));
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let line = format!("MIGRATE 127.0.0.1 {} {key} 0 10000", target.peer_port());
                let _: Value = told(source, &line);
            }
        }
    }

    /// Moves the slot's keys, and then the slot.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        self.move_keys(slot, from, to);
        let id = self.id(to);
        for server in [&self.masters[to], &self.masters[from]] {
            let line = format!("CLUSTER SETSLOT {slot} NODE {id}");
            server.run(&line).expect("the slot is moved");
        }
    }

    /// Moves the slot of a lock, with all keys.
    pub fn move_slot(&self, name: &str, to: usize) {
        let from = self.owner(name);
        let slot = self.begin_to_move(name, to);
        self.end_move(slot, from, to);
    }
}
