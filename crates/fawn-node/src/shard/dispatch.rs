//! Dispatch of a session's command: executed here, sent to another shard, or answered at once.
use super::single::execute_single;
use super::{ShardState, fan_out, multi, server};
use crate::gateway::consume::Dispatch;
use crate::gateway::{Flow, Prefetched, Session};
use crate::options::ShardOptions;
use crate::request::Destination;
use crate::status::ShardCounters;
use fawn_flash::Device;
use fawn_types::KeyHash;
use fawn_wire::{AfterReply, Command};

impl<D: Device> Dispatch for ShardState<D> {
    #[inline]
    fn options(&self) -> &ShardOptions {
        &self.options
    }

    #[inline]
    fn counters(&mut self) -> &mut ShardCounters {
        &mut self.counters
    }

    #[inline]
    fn execute(&mut self, session: &mut Session, command: Command<'_>) -> Flow {
        match command {
            Command::Single { request, format } => {
                let location = self.locate_key(request.key());
                execute_single(self, session, location, (&request, format))
            }
            Command::Multi(multi) => multi::execute(self, session, &multi),
            Command::Keyspace(keyspace) => fan_out::keyspace(self, session, &keyspace),
            Command::Connection(connection) => {
                let (Session { codec, identity, replies, .. }, mut after) = (session, AfterReply::KeepOpen);
                replies.respond(|out| after = connection.answer(codec, identity, out));
                if after == AfterReply::Close { Flow::End } else { Flow::Continue }
            }
            Command::Server(server) => server::execute(self, session, &server),
        }
    }

    #[inline]
    fn locate_key(&self, key: &[u8]) -> (KeyHash, Option<Destination>) {
        (self.hash(key), self.forward.remote_destination(key))
    }

    #[inline]
    fn prefetch(&self, hashes: &[KeyHash]) {
        if !hashes.is_empty() {
            self.host.engine.prefetch(self.member().id, hashes);
        }
    }

    #[inline]
    fn execute_prefetched(&mut self, session: &mut Session, prefetched: &Prefetched<'_>) -> Flow {
        let Prefetched { request, format, hash, owner, .. } = prefetched;
        execute_single(self, session, (*hash, *owner), (request, *format))
    }
}
