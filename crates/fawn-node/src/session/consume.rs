//! Input of a session: decoded command by command and executed, until it ends or the session stalls.
//!
//! The rules are the same for both executors, a shard's own store and a cluster.
use super::ahead::{Ahead, FIRSTS_MIN, Looked, look_at_firsts};
use super::{Phase, Room, Session, Sessions};
use crate::SessionId;
use crate::execute::{Flow, Stall};
use crate::options::ShardOptions;
use crate::output::Output;
use crate::status::Counters;
use fawn_ds::internals::WARM_KEYS_MAX;
use fawn_types::{KeyHash, Now, OperationError, ShardId, Version};
use fawn_wire::{Command, Decoded};
use std::collections::VecDeque;

/// An executor of commands.
pub(crate) trait Executor {
    fn options(&self) -> &ShardOptions;
    fn counters(&mut self) -> &mut Counters;
    fn execute(&mut self, session: &mut Session, command: Command<'_>, now: Now) -> Flow;

    /// Whether look-ahead pays; then the next three methods are meaningful.
    const LOOKS_AHEAD: bool = false;
    /// Hash of the key of the request at the start of `input`, and the shard that owns it unless it is this one.
    fn place(&self, _session: &Session, _key: &[u8], _input: &[u8]) -> (KeyHash, Option<ShardId>) {
        (KeyHash(0), None)
    }
    /// Prefetches keys of requests that follow.
    fn warm(&self, _hashes: &[KeyHash]) {}
    /// Like [`Executor::execute`], for a request decoded ahead.
    fn execute_looked(&mut self, session: &mut Session, looked: &Looked<'_>, now: Now) -> Flow {
        let Looked { request, shape, .. } = *looked;
        self.execute(session, Command::Single { request, shape }, now)
    }
}

/// Decodes and executes until the input ends, or the session stalls or ends.
#[inline]
fn consume<'a, E: Executor>(
    executor: &mut E,
    session: &mut Session,
    (mut first, input): (Option<&Looked<'a>>, &'a [u8]),
    now: Now,
) -> usize {
    let (mut at, mut ahead) = (0, Ahead::default());
    session.need_bytes = 1;
    while session.phase == Phase::Open && at < input.len() {
        if session.stalled.is_some() {
            return at;
        }
        if !session.has_room(executor.options()) {
            stall(executor, session, Stall::Room);
            return at;
        }
        // A prefetch of the first request alone would only wait for the same memory a moment earlier.
        if E::LOOKS_AHEAD && at > 0 && ahead.is_empty() {
            ahead.look(executor, session, &input[at..], now.wall);
        }
        let (flow, consumed) = match first.take().or_else(|| ahead.pop()) {
            Some(looked) => (begin_looked(executor, session, looked, now), looked.consumed),
            None => match session.codec.decode(&input[at..], now.wall) {
                Decoded::Command { command, consumed } => (begin(executor, session, command, now), consumed),
                Decoded::Incomplete { need_bytes } => {
                    session.need_bytes = need_bytes;
                    return at;
                }
                other => consume_rarer(executor, session, other, now),
            },
        };
        match flow {
            Flow::Next => {}
            Flow::Stall(why) => {
                stall(executor, session, why);
                return at;
            }
            Flow::End => session.phase = Phase::Draining,
        }
        let errors = session.replies.take_errors();
        let counters = executor.counters();
        if session.stands_for.is_some() {
            // The asking shard has counted it.
            counters.served += 1;
        } else {
            (counters.commands, counters.error_replies) = (counters.commands + 1, counters.error_replies + errors);
        }
        at += consumed;
    }
    // Discard input after QUIT.
    if session.phase == Phase::Open { at } else { input.len() }
}

/// Executes the command unless it returns values and the reply budget is used up.
#[inline]
fn begin(executor: &mut impl Executor, session: &mut Session, command: Command<'_>, now: Now) -> Flow {
    within_room(session, command.values(), |session| executor.execute(session, command, now))
}

/// Like [`begin`], for a request decoded ahead.
#[inline]
fn begin_looked(executor: &mut impl Executor, session: &mut Session, looked: &Looked<'_>, now: Now) -> Flow {
    let values = u32::from(looked.request.returns_value());
    within_room(session, values, |session| executor.execute_looked(session, looked, now))
}

#[inline]
fn within_room(session: &mut Session, values: u32, execute: impl FnOnce(&mut Session) -> Flow) -> Flow {
    if values == 0 {
        return execute(session);
    }
    if !session.has_reply_room() {
        return Flow::Stall(Stall::Replies);
    }
    let before_bytes = session.replies.bytes();
    let flow = execute(session);
    // Immediate replies update the length estimate here, later ones when they arrive.
    let bytes = session.replies.bytes() - before_bytes;
    if bytes > 0 {
        session.replies.learn(values, bytes);
    }
    flow
}

fn stall(executor: &mut impl Executor, session: &mut Session, why: Stall) {
    session.stalled = Some(why);
    executor.counters().stalls += 1;
}

#[cold]
fn consume_rarer(executor: &mut impl Executor, session: &mut Session, decoded: Decoded<'_>, now: Now) -> (Flow, usize) {
    match decoded {
        Decoded::Skip { consumed } => (Flow::Next, consumed),
        Decoded::Error { message, consumed, fatal } => {
            executor.counters().malformed += 1;
            session.replies.respond(|out| out.extend_from_slice(&message));
            (if fatal { Flow::End } else { Flow::Next }, consumed)
        }
        Decoded::Rewritten { bytes, consumed } => match session.codec.decode(&bytes, now.wall) {
            Decoded::Command { command, .. } => (begin(executor, session, command, now), consumed),
            Decoded::Error { message, fatal, .. } => {
                executor.counters().malformed += 1;
                session.replies.respond(|out| out.extend_from_slice(&message));
                (if fatal { Flow::End } else { Flow::Next }, consumed)
            }
            other => unreachable!("a rewritten command is whole and canonical, found {other:?}"),
        },
        Decoded::Command { .. } | Decoded::Incomplete { .. } => unreachable!("handled by the caller"),
    }
}

/// Executes input of several sessions; records how much of each is consumed.
pub(crate) fn handle_inputs<E: Executor>(
    executor: &mut E,
    sessions: &mut Sessions,
    outputs: &mut VecDeque<Output>,
    (inputs, used): (&[(SessionId, &[u8])], &mut [usize]),
    now: Now,
) {
    assert_eq!(inputs.len(), used.len(), "each input's consumption is noted");
    for (inputs, used) in inputs.chunks(WARM_KEYS_MAX).zip(used.chunks_mut(WARM_KEYS_MAX)) {
        if E::LOOKS_AHEAD && inputs.len() >= FIRSTS_MIN {
            let mut firsts = [const { None }; WARM_KEYS_MAX];
            look_at_firsts(executor, sessions, inputs, &mut firsts, now.wall);
            for ((used, (id, input)), first) in used.iter_mut().zip(inputs).zip(&firsts) {
                *used = handle_looked(executor, sessions, outputs, (*id, first.as_ref(), input), now);
            }
        } else {
            for (used, (id, input)) in used.iter_mut().zip(inputs) {
                *used = handle_looked(executor, sessions, outputs, (*id, None, input), now);
            }
        }
    }
}

/// Executes input of a session; returns how much is consumed.
#[inline]
pub(crate) fn handle_input(
    executor: &mut impl Executor,
    sessions: &mut Sessions,
    outputs: &mut VecDeque<Output>,
    (id, input): (SessionId, &[u8]),
    now: Now,
) -> usize {
    handle_looked(executor, sessions, outputs, (id, None, input), now)
}

fn handle_looked<'a>(
    executor: &mut impl Executor,
    sessions: &mut Sessions,
    outputs: &mut VecDeque<Output>,
    (id, first, input): (SessionId, Option<&Looked<'a>>, &'a [u8]),
    now: Now,
) -> usize {
    let Some((session, pool, room)) = sessions.get_with_pool(id) else { return input.len() };
    session.replies.borrow_from(pool);
    room.look(session);
    let consumed = consume(executor, session, (first, input), now);
    if session.stands_for.is_none() {
        executor.counters().input_bytes += consumed as u64;
    }
    if session.stalled.is_none() && !session.has_room(executor.options()) {
        // All offered input was consumed and no more is accepted: the host must be told when it is.
        stall(executor, session, Stall::Room);
    }
    room.note(session);
    let needs_turn = !session.is_quiet() || session.stalled.is_some() || session.phase != Phase::Open;
    if session.replies.has_output() && !session.announced {
        session.announced = true;
        outputs.push_back(Output::Writable(id));
    }
    if needs_turn {
        sessions.list(id);
    }
    consumed
}

/// Moves due replies to the outputs and emits the effects; `relieved`: budget or queue space was freed.
pub(crate) fn settle(
    sessions: &mut Sessions,
    options: &ShardOptions,
    (committed, failed): (Version, Option<OperationError>),
    relieved: bool,
    outputs: &mut VecDeque<Output>,
) {
    let listed = sessions.take_listed();
    for &id in &listed {
        let Some((session, _, room)) = sessions.get_with_pool(id) else { continue };
        session.replies.settle(committed, failed);
        session.own.settle(committed);
        if failed.is_some() {
            session.own.forget();
        }
        room.note(session);
        if session.stalled == Some(Stall::Replies) {
            wait_for_room(session, room);
        }
        tell(session, options, relieved, outputs);
        // The grant queue resumes waiting sessions.
        if !session.is_quiet() || session.stalled.is_some() && !session.waits_for_room {
            sessions.list(id);
        }
    }
    sessions.return_listed(listed);
    sessions.call_waiting(outputs);
}

/// Queues a session that holds no replies; any other waits for its own client first, with the budget as it is now.
fn wait_for_room(session: &mut Session, room: &mut Room) {
    room.look(session);
    if session.replies.charge().sum() == 0 {
        room.queue(session);
    }
}

/// Emits the effects that a session's state calls for.
fn tell(session: &mut Session, options: &ShardOptions, relieved: bool, outputs: &mut VecDeque<Output>) {
    if session.replies.has_output() && !session.announced {
        session.announced = true;
        outputs.push_back(Output::Writable(session.id));
    }
    if session.stalled.is_some_and(|stall| session.may_go_on(stall, options, relieved)) {
        session.stalled = None;
        if session.phase == Phase::Open {
            outputs.push_back(Output::Resume(session.id));
        }
    }
    if session.phase == Phase::Draining && session.replies.is_settled() {
        session.phase = Phase::Ended;
        outputs.push_back(Output::Close(session.id));
    }
}

/// The client sends no more (a half-closed socket): pending replies are finished, then [`Output::Close`] follows.
pub(crate) fn end_input(sessions: &mut Sessions, id: SessionId) {
    if let Some(session) = sessions.get_mut(id)
        && session.phase == Phase::Open
    {
        session.phase = Phase::Draining;
    }
    sessions.list(id);
}

/// The host wrote this many bytes of the session's output.
pub(crate) fn wrote(sessions: &mut Sessions, id: SessionId, bytes: usize, counters: &mut Counters) {
    let Some((session, pool, room)) = sessions.get_with_pool(id) else { return };
    session.replies.wrote(bytes);
    room.note(session);
    if session.stands_for.is_none() {
        counters.output_bytes += bytes as u64;
    }
    // Errors of replies that came after their request's turn.
    counters.error_replies += session.replies.take_errors();
    if !session.replies.has_output() {
        session.announced = false;
        session.replies.give_back(pool);
    }
    if session.stalled.is_some() {
        sessions.list(id);
    }
}

/// Whether the session accepts input; if not, [`Output::Resume`] or [`Output::Close`] will follow.
pub(crate) fn wants_input(sessions: &Sessions, options: &ShardOptions, id: SessionId) -> bool {
    sessions
        .get(id)
        .is_some_and(|session| session.phase == Phase::Open && session.stalled.is_none() && session.has_room(options))
}
