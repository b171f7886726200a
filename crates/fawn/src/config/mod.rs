//! Configuration: flags over environment (`FAWN_…`) over one TOML file over defaults.
//!
//! [`SettingFlags`] is the only list of settings: a key of the file is the long name of a flag, and the flag's own
//! parser reads its value, so the three sources cannot diverge.
mod file;
mod flags;
mod memory;
mod settings;
mod shards;
mod units;

pub(crate) use flags::{SettingFlags, SettingSources};
pub(crate) use memory::default_budget;
pub(crate) use settings::{DeviceChoice, DurabilityMode, LayoutChoice, LogFormat, SegmentOrigin, Settings, refuse};
pub(crate) use shards::ShardCount;
pub(crate) use units::{Endpoint, Ratio, Size, TimeSpan};
