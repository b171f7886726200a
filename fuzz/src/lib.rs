//! Owns the table of fuzz targets: a name, the function that must survive any input, and valid samples to start from.
#![forbid(unsafe_code)]

mod samples;

/// Something that must survive any input.
pub struct Target {
    /// Its name: also libFuzzer's.
    pub name: &'static str,
    /// Panics, or does not return, when the code under test is wrong.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// Every decoder, and what stands behind it.
pub static TARGETS: &[Target] = &[
    Target { name: "record", run: fawn_ds::format::fuzz::record, samples: samples::records },
    Target { name: "frame", run: fawn_ds::format::fuzz::frame, samples: samples::frames },
    Target { name: "scan", run: fawn_ds::format::fuzz::scan, samples: samples::segments },
    Target { name: "manifest", run: fawn_ds::format::fuzz::manifest, samples: samples::manifests },
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

/// Every target's name, for messages.
#[must_use]
pub fn names() -> String {
    TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(" ")
}
