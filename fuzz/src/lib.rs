//! The table of fuzz targets: name, function under test, and valid samples as starting points.
#![forbid(unsafe_code)]

mod samples;

/// A fuzz target: code that must handle any input.
pub struct Target {
    /// The target's name, as used by libFuzzer.
    pub name: &'static str,
    /// The function under test. It panics or hangs if the code is wrong.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// All targets: every decoder, and the code behind it.
pub static TARGETS: &[Target] = &[
    Target { name: "record", run: fawn_ds::fuzz::record, samples: samples::records },
    Target { name: "frame", run: fawn_ds::fuzz::frame, samples: samples::frames },
    Target { name: "scan", run: fawn_ds::fuzz::scan, samples: samples::segments },
    Target { name: "manifest", run: fawn_ds::fuzz::manifest, samples: samples::manifests },
    Target { name: "recovery", run: fawn_ds::fuzz::recovery, samples: samples::splices },
    Target { name: "resp", run: fawn_wire::fuzz::resp, samples: samples::resp },
    Target { name: "memcached", run: fawn_wire::fuzz::memcached, samples: samples::memcached },
    Target { name: "native", run: fawn_wire::fuzz::native, samples: samples::native },
    Target { name: "client_resp", run: fawn_wire::fuzz::client_resp, samples: samples::resp_replies },
    Target { name: "client_memcached", run: fawn_wire::fuzz::client_memcached, samples: samples::memcached_replies },
    Target { name: "peer_frame", run: fawn_chain::fuzz::peer_frame, samples: samples::peer_frames },
    Target { name: "glob", run: fawn_wire::fuzz::glob, samples: samples::globs },
];

/// The target called `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The names of all targets, for messages.
#[must_use]
pub fn names() -> String {
    TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(" ")
}
