//! Input of a session: decoded command by command and executed, until it ends or the session stalls.
use super::lookahead::{FIRSTS_MIN, Lookahead, Prefetched, peek_firsts};
use super::{Budget, Session, SessionPhase, Sessions};
use super::{Flow, Stall};
use crate::options::ShardOptions;
use crate::output::ShardOutput;
use crate::request::{Destination, SessionId};
use crate::status::ShardCounters;
use fawn_ds::internals::PREFETCH_KEYS_MAX;
use fawn_types::{KeyHash, Now, OperationError, Version};
use fawn_wire::{Command, Decoded};
use std::collections::VecDeque;

/// The executor of commands: the shard that has the sessions.
pub(crate) trait Dispatch {
    fn options(&self) -> &ShardOptions;
    fn counters(&mut self) -> &mut ShardCounters;
    fn execute(&mut self, session: &mut Session, command: Command<'_>) -> Flow;
    /// Hash of the key, and its destination unless this shard executes it.
    fn locate_key(&self, key: &[u8]) -> (KeyHash, Option<Destination>);
    /// Prefetches keys of requests that follow.
    fn prefetch(&self, hashes: &[KeyHash]);
    /// Like [`Dispatch::execute`], for a request decoded ahead.
    fn execute_prefetched(&mut self, session: &mut Session, prefetched: &Prefetched<'_>) -> Flow;
}

/// Decodes and executes until the input ends, or the session stalls or ends.
#[inline]
fn consume<'a, E: Dispatch>(
    executor: &mut E,
    session: &mut Session,
    mut first: Option<&Prefetched<'a>>,
    input: &'a [u8],
    now: Now,
) -> usize {
    let (mut at, mut lookahead) = (0, Lookahead::default());
    session.need_bytes = 1;
    while session.phase == SessionPhase::Open && at < input.len() {
        if session.stalled.is_some() {
            return at;
        }
        if !session.has_capacity(executor.options()) {
            stall(executor, session, Stall::SessionLimit);
            return at;
        }
        // A prefetch of the first request alone would only wait for the same memory a moment earlier.
        if at > 0 && lookahead.is_empty() {
            lookahead.fill(executor, session, &input[at..], now.wall);
        }
        let (flow, consumed) = match first.take().or_else(|| lookahead.pop()) {
            Some(prefetched) => (executor.execute_prefetched(session, prefetched), prefetched.consumed),
            None => match session.codec.decode(&input[at..], now.wall) {
                Decoded::Command { command, consumed } => (executor.execute(session, command), consumed),
                Decoded::Incomplete { need_bytes } => {
                    session.need_bytes = need_bytes;
                    return at;
                }
                other => consume_other(executor, session, other, now),
            },
        };
        match flow {
            Flow::Continue => {}
            Flow::Stall(why) => {
                stall(executor, session, why);
                return at;
            }
            Flow::End => session.phase = SessionPhase::Draining,
        }
        let errors = session.replies.take_errors();
        let counters = executor.counters();
        (counters.commands, counters.error_replies) = (counters.commands + 1, counters.error_replies + errors);
        at += consumed;
    }
    // Discard input after QUIT.
    if session.phase == SessionPhase::Open { at } else { input.len() }
}

fn stall(executor: &mut impl Dispatch, session: &mut Session, why: Stall) {
    session.stalled = Some(why);
    executor.counters().stalls += 1;
}

#[cold]
fn consume_other(executor: &mut impl Dispatch, session: &mut Session, decoded: Decoded<'_>, now: Now) -> (Flow, usize) {
    match decoded {
        Decoded::Command { command, consumed } => (executor.execute(session, command), consumed),
        Decoded::Skip { consumed } => (Flow::Continue, consumed),
        Decoded::Error { message, consumed, fatal } => {
            executor.counters().malformed += 1;
            session.replies.respond(|out| out.extend_from_slice(&message));
            (if fatal { Flow::End } else { Flow::Continue }, consumed)
        }
        Decoded::Rewritten { bytes, consumed } => {
            let decoded = session.codec.decode(&bytes, now.wall);
            (consume_other(executor, session, decoded, now).0, consumed)
        }
        Decoded::Incomplete { .. } => unreachable!("the caller waits for more, and a rewritten command is whole"),
    }
}

/// Executes input of several sessions; records how much of each is consumed.
pub(crate) fn handle_inputs<E: Dispatch>(
    executor: &mut E,
    sessions: &mut Sessions,
    outputs: &mut VecDeque<ShardOutput>,
    inputs: &[(SessionId, &[u8])],
    used: &mut [usize],
    now: Now,
) {
    assert_eq!(inputs.len(), used.len(), "each input's consumption is noted");
    for (inputs, used) in inputs.chunks(PREFETCH_KEYS_MAX).zip(used.chunks_mut(PREFETCH_KEYS_MAX)) {
        if inputs.len() >= FIRSTS_MIN {
            let mut firsts = [const { None }; PREFETCH_KEYS_MAX];
            peek_firsts(executor, sessions, inputs, &mut firsts, now.wall);
            for ((used, (id, input)), first) in used.iter_mut().zip(inputs).zip(&firsts) {
                *used = handle_input(executor, sessions, outputs, *id, first.as_ref(), input, now);
            }
        } else {
            for (used, (id, input)) in used.iter_mut().zip(inputs) {
                *used = handle_input(executor, sessions, outputs, *id, None, input, now);
            }
        }
    }
}

/// Executes input of a session, whose first request may be decoded already; returns how much is consumed.
pub(crate) fn handle_input<'a>(
    executor: &mut impl Dispatch,
    sessions: &mut Sessions,
    outputs: &mut VecDeque<ShardOutput>,
    id: SessionId,
    first: Option<&Prefetched<'a>>,
    input: &'a [u8],
    now: Now,
) -> usize {
    let Some((session, pool, budget)) = sessions.get_with_pool(id) else { return input.len() };
    session.replies.borrow_from(pool);
    budget.share_with(session);
    let consumed = consume(executor, session, first, input, now);
    executor.counters().input_bytes += consumed as u64;
    if session.stalled.is_none() && !session.has_capacity(executor.options()) {
        // All offered input was consumed and no more is accepted: the host must be notified when the session resumes.
        stall(executor, session, Stall::SessionLimit);
    }
    budget.update(session);
    let needs_turn = !session.is_quiet() || session.stalled.is_some() || session.phase != SessionPhase::Open;
    announce_output(session, outputs);
    if needs_turn {
        sessions.schedule(id);
    }
    consumed
}

/// Moves due replies to the outputs and emits the effects. So many sessions that the shard's bounds have stopped may be tried again, all
/// if budget or queue space was freed. Returns whether another waits for that.
pub(crate) fn settle(
    sessions: &mut Sessions,
    options: &ShardOptions,
    committed: Version,
    failed: Option<OperationError>,
    resumes_max: usize,
    outputs: &mut VecDeque<ShardOutput>,
) -> bool {
    let mut waits_for_shard = false;
    let mut scheduled = sessions.take_scheduled();
    let mut resumes_left = resumes_max;
    if resumes_max > 0 && !scheduled.is_empty() {
        // The first one that resumes may use all that was freed: each in turn is the first.
        let turns = if resumes_max < scheduled.len() { resumes_max } else { 1 };
        scheduled.rotate_left(turns);
    }
    for &id in &scheduled {
        let Some((session, _, budget)) = sessions.get_with_pool(id) else { continue };
        session.replies.settle(committed, failed);
        session.own_keys.settle(committed);
        if failed.is_some() {
            session.own_keys.forget_versions();
        }
        budget.update(session);
        if session.stalled == Some(Stall::ReplyBudget) {
            wait_for_budget(session, budget);
        }
        // One that resumes keeps its turn: it may stall again.
        let (is_stalled, waits) = (session.stalled.is_some(), session.stalled == Some(Stall::Shard));
        notify_host(session, options, resumes_left > 0, outputs);
        let has_resumed = waits && session.stalled.is_none();
        resumes_left -= usize::from(has_resumed);
        waits_for_shard |= waits && !has_resumed && session.has_capacity(options);
        // The grant queue resumes waiting sessions.
        if !session.is_quiet() || is_stalled && !session.is_queued_for_budget() {
            sessions.schedule(id);
        }
    }
    sessions.return_scheduled(scheduled);
    sessions.serve_waiting(outputs);
    waits_for_shard
}

/// Queues a session that holds no replies; any other waits for its own client first, with the budget as it is now.
fn wait_for_budget(session: &mut Session, budget: &mut Budget) {
    budget.share_with(session);
    if session.replies.is_clear() {
        budget.queue(session);
    }
}

#[inline]
fn announce_output(session: &mut Session, outputs: &mut VecDeque<ShardOutput>) {
    if session.replies.has_output() && !session.output_announced {
        session.output_announced = true;
        outputs.push_back(ShardOutput::Writable(session.id));
    }
}

/// Emits the effects that a session's state calls for.
fn notify_host(session: &mut Session, options: &ShardOptions, relieved: bool, outputs: &mut VecDeque<ShardOutput>) {
    announce_output(session, outputs);
    if session.stalled.is_some_and(|stall| session.may_resume(stall, options, relieved)) {
        session.stalled = None;
        if session.phase == SessionPhase::Open {
            outputs.push_back(ShardOutput::Resume(session.id));
        }
    }
    if session.phase == SessionPhase::Draining && session.replies.is_settled() {
        session.phase = SessionPhase::Ended;
        outputs.push_back(ShardOutput::Close(session.id));
    }
}
