//! The thread that runs a store's timers while no caller does.
use super::leader::EngineQueue;
use super::op::{Op, Response};
use super::{Error, Result};
use fawn_flash::{DeviceError, IoOperation};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a store that was written to is looked after.
const TICK: Duration = Duration::from_millis(250);
/// After so many ticks without a write or work in flight the thread sleeps until the next write.
const CALM_TICKS: u32 = 8;

pub(super) fn spawn(shared: &Arc<EngineQueue>) -> Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("fawn-ds".to_owned()).spawn(move || run(&shared));
    thread.map_err(|error| {
        let (operation, name) = (IoOperation::Metadata("start a thread"), "timer".to_owned());
        Error::from(DeviceError::Io { operation, name, offset: 0, detail: error.to_string() })
    })
}

fn run(shared: &EngineQueue) {
    let mut calm = 0;
    loop {
        let interval = (calm < CALM_TICKS).then_some(TICK);
        let Some(has_written) = shared.wait_for_tick(interval) else { return };
        match shared.call(Op::Tick) {
            Ok(Response::Ticked { is_busy: false }) if !has_written => calm += 1,
            Ok(_) => calm = 0,
            // Closed or failed: no timer matters any more.
            Err(_) => return,
        }
    }
}
