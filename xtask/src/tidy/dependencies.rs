//! Dependency rules: crates depend on lower layers only, not on siblings, and Tokio is in two crates.
use super::TidyFinding;
use crate::tree;
use serde_json::Value;
use std::process::Command;

/// Crates and their layers. `docs/decisions` explains why `fawn-bench` is on the layer of `fawn-node`.
pub(super) const LAYERS: [(&str, u8); 13] = [
    ("fawn-types", 0),
    ("fawn-flash", 1),
    ("fawn-chain", 1),
    ("fawn-wire", 1),
    ("fawn-dli", 1),
    ("fawn-ds", 2),
    ("gtssl", 2),
    ("fawn-node", 3),
    ("fawn-bench", 3),
    ("fawn", 4),
    ("fawn-sim", 4),
    ("fawn-fuzz", 5),
    ("xtask", 5),
];
const MAY_TOKIO: [&str; 2] = ["fawn", "fawn-bench"];
/// Packages that need C build tools or contain C.
const NEVER: [&str; 5] = ["bindgen", "cmake", "prost-build", "openssl-sys", "librocksdb-sys"];

/// Checks the workspace's manifests as cargo resolves them.
pub(crate) fn check() -> Result<Vec<TidyFinding>, String> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(tree::root())
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(check_metadata(&metadata))
}

fn check_metadata(metadata: &Value) -> Vec<TidyFinding> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Value) -> Vec<TidyFinding> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some(layer) = layer_of(name) else {
        return vec![TidyFinding::new(name, "has no layer: add it to LAYERS in xtask/src/tidy/dependencies.rs")];
    };
    let mut findings = Vec::new();
    for dependency in package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let on = dependency["name"].as_str().unwrap_or_default();
        let for_tests = dependency["kind"].as_str() == Some("dev");
        if layer_of(on).is_some_and(|below| below >= layer) && !for_tests {
            findings.push(TidyFinding::new(name, format!("must not depend on {on}: dependencies only point down")));
        }
        if on == "tokio" && !MAY_TOKIO.contains(&name) {
            findings.push(TidyFinding::new(name, "must not depend on tokio: it lives in fawn and fawn-bench"));
        }
        if NEVER.contains(&on) {
            findings
                .push(TidyFinding::new(name, format!("must not depend on {on}: the default build needs no C tools")));
        }
    }
    findings
}

fn layer_of(name: &str) -> Option<u8> {
    LAYERS.iter().find(|(known, _)| *known == name).map(|(_, layer)| *layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, on: &str) -> Value {
        serde_json::json!({"packages": [{"name": name, "dependencies": [{"name": on, "kind": null}]}]})
    }

    #[test]
    fn planted_faults_are_found() {
        assert!(check_metadata(&package("fawn-ds", "fawn-flash")).is_empty());
        assert_eq!(check_metadata(&package("fawn-flash", "fawn-ds")).len(), 1, "points up");
        assert_eq!(check_metadata(&package("fawn-flash", "fawn-wire")).len(), 1, "names a sibling");
        assert_eq!(check_metadata(&package("fawn-ds", "tokio")).len(), 1);
        assert_eq!(check_metadata(&package("fawn-utils", "libc")).len(), 1, "unknown crate");
        assert_eq!(check_metadata(&package("fawn-ds", "cmake")).len(), 1);
    }
}
