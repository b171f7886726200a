//! The table of fuzz targets: name, function under test, and valid samples as starting points.
#![forbid(unsafe_code)]

mod run_samples;
mod samples;
mod wire;

/// A fuzz target: code that must handle any input.
pub struct FuzzTarget {
    /// The target's name, as used by libFuzzer.
    pub name: &'static str,
    /// The function under test. It panics or hangs if the code is wrong.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// All targets: every decoder, and the code behind it.
pub static TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "record", run: fawn_ds::fuzz::record, samples: samples::records },
    FuzzTarget { name: "frame", run: fawn_ds::fuzz::frame, samples: samples::frames },
    FuzzTarget { name: "tail_frames", run: fawn_ds::fuzz::tail_frames, samples: samples::frames },
    FuzzTarget { name: "scan", run: fawn_ds::fuzz::scan, samples: samples::segments },
    FuzzTarget { name: "manifest", run: fawn_ds::fuzz::manifest, samples: samples::manifests },
    FuzzTarget { name: "recovery", run: fawn_ds::fuzz::recovery, samples: samples::splices },
    FuzzTarget { name: "run_page", run: fawn_ds::fuzz::run_page, samples: run_samples::pages },
    FuzzTarget { name: "run_ends", run: fawn_ds::fuzz::run_ends, samples: run_samples::ends },
    FuzzTarget { name: "run_tail", run: fawn_ds::fuzz::run_tail, samples: run_samples::tails },
    FuzzTarget { name: "resp", run: wire::resp, samples: samples::resp },
    FuzzTarget { name: "memcached", run: wire::memcached, samples: samples::memcached },
    FuzzTarget { name: "internal", run: wire::internal, samples: samples::internal },
    FuzzTarget { name: "client_resp", run: wire::client_resp, samples: samples::resp_replies },
    FuzzTarget { name: "client_memcached", run: wire::client_memcached, samples: samples::memcached_replies },
    FuzzTarget { name: "peer_frame", run: fawn_chain::fuzz::peer_frame, samples: samples::peer_frames },
    FuzzTarget { name: "glob", run: wire::glob, samples: samples::globs },
];

/// The target called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The names of all targets, for messages.
#[must_use]
pub fn names() -> String {
    TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(" ")
}
