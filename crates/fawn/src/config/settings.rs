//! Effective settings: defaults filled in, contradictions and harmful values refused.
use super::shards::cores;
use super::{Endpoint, Ratio, SettingFlags, ShardCount, Size, TimeSpan, memory};
use crate::failure::{Exit, Failure};
use clap::ValueEnum;
use fawn_ds::RecordLayout;
use fawn_ds::internals::{CAPACITY_SEGMENTS_MIN, segment_bytes_for};
use fawn_types::{Durability, limits};
use indicatif::HumanBytes;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Minimum budget of a shard: a segment's buffers, an index and some cache.
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Segments that a new store makes first: the active and the next one of each of its two streams.
const SEGMENTS_FIRST: u64 = 4;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// When a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum DurabilityMode {
    /// When it is synced: survives power loss.
    Sync,
    /// When it is written, which survives kill -9; synced within a second.
    Everysec,
    /// When it is in memory: kill -9 may lose acknowledged writes.
    Memory,
}

/// Where records lie on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum LayoutChoice {
    /// In the order of their writes: 7 bytes of memory per key.
    Log,
    /// Cold ones in runs in key order while the indexes take more than half of the memory.
    Auto,
    /// Cold ones in runs in key order: one or two bytes of memory per key.
    Sorted,
}

/// Storage access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum DeviceChoice {
    /// io_uring where it works, else portable; the choice is logged.
    Auto,
    /// io_uring with direct I/O; refused where it does not work.
    Uring,
    /// Positioned reads and writes on a small pool of threads.
    Portable,
}

/// Format of the logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    /// Plain lines.
    Human,
    /// A JSON object per line.
    Json,
}

/// Where the size of the segments comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentOrigin {
    /// Nothing: the default.
    Default,
    /// The settings.
    Given,
    /// An existing store, whose segments keep their size.
    Store,
}

/// The settings of a server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) dir: PathBuf,
    pub(crate) resp: Endpoint,
    pub(crate) memcached: Endpoint,
    pub(crate) admin: Endpoint,
    pub(crate) memory: Size,
    /// As given; an existing directory has its own number.
    pub(crate) shards: Option<ShardCount>,
    pub(crate) durability: DurabilityMode,
    pub(crate) capacity: Option<Size>,
    pub(crate) space_amplification_max: Ratio,
    pub(crate) layout: LayoutChoice,
    pub(crate) scrub_period: TimeSpan,
    pub(crate) segment: Size,
    pub(crate) segment_origin: SegmentOrigin,
    pub(crate) value_max: Size,
    is_value_max_given: bool,
    pub(crate) device: DeviceChoice,
    pub(crate) max_connections: u32,
    pub(crate) stall_timeout: TimeSpan,
    pub(crate) shutdown_timeout: TimeSpan,
    pub(crate) allow_public: bool,
    pub(crate) ready_file: Option<PathBuf>,
    pub(crate) log_format: LogFormat,
}

impl Settings {
    /// Completes the given settings with those of the file and with defaults, and checks the result.
    pub(crate) fn resolve(given: SettingFlags, file: SettingFlags) -> Result<Self, Failure> {
        let settings = Self::with_defaults(given, file);
        settings.check()?;
        Ok(settings)
    }

    fn with_defaults(given: SettingFlags, file: SettingFlags) -> Self {
        let local = |port| Endpoint::At(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let seconds = |count| TimeSpan(Duration::from_secs(count));
        let (capacity, shards) = (given.capacity.or(file.capacity), given.shards.or(file.shards));
        let (segment, value_max) = (given.segment.or(file.segment), given.value_max.or(file.value_max));
        let segment_origin = if segment.is_some() { SegmentOrigin::Given } else { SegmentOrigin::Default };
        let segment = segment.unwrap_or_else(|| segment_for(capacity, shards));
        Self {
            dir: given.dir.or(file.dir).unwrap_or_else(|| PathBuf::from("fawn-data")),
            resp: given.resp.or(file.resp).unwrap_or_else(|| local(6380)),
            memcached: given.memcached.or(file.memcached).unwrap_or_else(|| local(11212)),
            admin: given.admin.or(file.admin).unwrap_or_else(|| local(8380)),
            memory: given.memory.or(file.memory).unwrap_or_else(memory::default_budget),
            shards,
            durability: given.durability.or(file.durability).unwrap_or(DurabilityMode::Sync),
            capacity,
            space_amplification_max: given
                .space_amplification_max
                .or(file.space_amplification_max)
                .unwrap_or(Ratio { percent: 140 }),
            layout: given.layout.or(file.layout).unwrap_or(LayoutChoice::Log),
            scrub_period: given.scrub_period.or(file.scrub_period).unwrap_or_else(|| seconds(30 * 24 * 3600)),
            segment,
            segment_origin,
            value_max: value_max.unwrap_or_else(|| value_max_for(segment)),
            is_value_max_given: value_max.is_some(),
            device: given.device.or(file.device).unwrap_or(DeviceChoice::Auto),
            max_connections: given.max_connections.or(file.max_connections).unwrap_or(16_384),
            stall_timeout: given.stall_timeout.or(file.stall_timeout).unwrap_or_else(|| seconds(60)),
            shutdown_timeout: given.shutdown_timeout.or(file.shutdown_timeout).unwrap_or_else(|| seconds(5)),
            allow_public: given.allow_public.or(file.allow_public).unwrap_or(false),
            ready_file: given.ready_file.or(file.ready_file),
            log_format: given.log_format.or(file.log_format).unwrap_or(LogFormat::Human),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        for (name, endpoint) in [("resp", self.resp), ("memcached", self.memcached), ("admin", self.admin)] {
            let Some(address) = endpoint.address() else { continue };
            if !address.ip().is_loopback() && !self.allow_public {
                return refuse(format!(
                    "{name} = {address}: other machines reach this address and there is no authentication yet; \
                     listen on 127.0.0.1, or pass --allow-public if the network itself is trusted"
                ));
            }
        }
        self.check_shards(self.shards_given())?;
        let segment_bytes = self.segment.0;
        if !segment_bytes.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
            return refuse(format!("segment = {}: expected a power of two from 64K to 1G", self.segment));
        }
        if self.segment_origin == SegmentOrigin::Given {
            self.check_value_max()?;
        } else {
            // An existing store may have other segments than a new one gets.
            self.check_value_max_of(Size(SEGMENT_BYTES_MAX))?;
        }
        let ratio = self.space_amplification_max;
        if !(105..=10_000).contains(&ratio.percent) {
            return refuse(format!("space-amplification-max = {ratio}: expected 1.05 to 100"));
        }
        if self.stall_timeout.0.is_zero() {
            return refuse("stall-timeout = 0s: expected more, or every client that waits a moment is cut off");
        }
        if self.max_connections == 0 {
            return refuse("max-connections = 0: expected at least 1");
        }
        Ok(())
    }

    /// Checks that a value fits a segment.
    pub(crate) fn check_value_max(&self) -> Result<(), Failure> {
        self.check_value_max_of(self.segment)
    }

    fn check_value_max_of(&self, segment: Size) -> Result<(), Failure> {
        let bytes_max = segment.0 / limits::RECORD_SEGMENT_SHARE as u64;
        if self.value_max.0 == 0 || self.value_max.0 >= 1 << 24 || self.value_max.0 > bytes_max {
            return refuse(format!(
                "value-max = {}: expected 1 byte to a quarter of a segment ({}) and below 16M",
                self.value_max,
                Size(bytes_max)
            ));
        }
        Ok(())
    }

    /// The settings for an existing store with segments of this size, which bounds its values too.
    pub(crate) fn with_segment(&self, segment: Size) -> Result<Self, Failure> {
        let value_max = if self.is_value_max_given { self.value_max } else { value_max_for(segment) };
        let settings = Self { segment, segment_origin: SegmentOrigin::Store, value_max, ..self.clone() };
        settings.check_value_max()?;
        Ok(settings)
    }

    /// Checks that memory and capacity suffice for this many shards.
    pub(crate) fn check_shards(&self, shards: u16) -> Result<(), Failure> {
        let least = Size(MEMORY_BYTES_MIN * u64::from(shards));
        if self.memory < least {
            let memory = self.memory;
            return refuse(format!("memory = {memory}: expected at least {least}{}", of_each(shards)));
        }
        let least = Size(CAPACITY_SEGMENTS_MIN * self.segment.0 * u64::from(shards));
        match self.capacity {
            Some(capacity) if capacity < least => {
                let can_be_smaller = self.segment_origin != SegmentOrigin::Store && self.segment.0 > SEGMENT_BYTES_MIN;
                let otherwise = if can_be_smaller { ", or a smaller segment" } else { "" };
                refuse(format!(
                    "capacity = {capacity}: expected at least {CAPACITY_SEGMENTS_MIN} segments, {least}{}{otherwise}",
                    of_each(shards)
                ))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a disk with so much free space takes a new store in `dir`: its segments are as large for good.
    pub(crate) fn check_disk(&self, free_bytes: u64) -> Result<(), Failure> {
        let (shards, free) = (self.shards_if_new(), Size(free_bytes >> 10 << 10));
        let least = |segment: Size| Size(SEGMENTS_FIRST * segment.0 * u64::from(shards));
        if free >= least(self.segment) {
            return Ok(());
        }
        let smaller = segment_for(Some(free), Some(ShardCount::Number(shards)));
        let remedy = match smaller < self.segment && least(smaller) <= free {
            true => format!("free space, or choose smaller segments, such as --segment {smaller}"),
            false => "free space, or choose a directory on another disk".to_owned(),
        };
        let (dir, segment, least) = (self.dir.display(), self.segment, least(self.segment));
        let message = format!(
            "{dir}: its disk has {free} left, and a new store needs at least {SEGMENTS_FIRST} segments of {segment}, \
             {least}{}; {remedy}",
            of_each(shards)
        );
        Err(Failure::new(Exit::Data, message))
    }

    /// Settings that are accepted, but seldom meant.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(available) = memory::available().filter(|available| self.memory > *available) {
            let (memory, available) = (self.memory, HumanBytes(available.0));
            warnings.push(format!(
                "memory = {memory}: more than this machine or container has, {available}; the system may end the server \
                 as it fills up, choose a lower one"
            ));
        }
        if [self.resp, self.memcached].iter().all(|endpoint| endpoint.address().is_none()) {
            warnings.push("resp and memcached are off: no client can connect; give one of them an address".to_owned());
        }
        warnings
    }

    /// The number of shards if one is given, else 1.
    pub(crate) fn shards_given(&self) -> u16 {
        match self.shards {
            Some(ShardCount::Number(shards)) => shards,
            Some(ShardCount::Auto) | None => 1,
        }
    }

    /// The number of shards of a new directory.
    pub(crate) fn shards_if_new(&self) -> u16 {
        if self.shards == Some(ShardCount::Auto) { self.shards_auto() } else { self.shards_given() }
    }

    /// The number of shards for `auto`: one per core while each gets its minimum memory.
    fn shards_auto(&self) -> u16 {
        let by_memory = u16::try_from(self.memory.0 / MEMORY_BYTES_MIN).unwrap_or(u16::MAX);
        cores().min(by_memory).max(1)
    }

    /// Settings of one of `shards` shards: its share of memory and capacity, and its own directory.
    pub(crate) fn part(&self, shards: u16, dir: PathBuf) -> Self {
        let part = |size: Size| Size(size.0 / u64::from(shards));
        Self { dir, memory: part(self.memory), capacity: self.capacity.map(part), ..self.clone() }
    }

    /// The settings as a configuration file.
    pub(crate) fn to_toml(&self) -> String {
        let mut pairs = vec![
            ("dir", self.dir.display().to_string()),
            ("resp", self.resp.to_string()),
            ("memcached", self.memcached.to_string()),
            ("admin", self.admin.to_string()),
            ("memory", self.memory.to_string()),
            ("durability", name(self.durability)),
            ("space-amplification-max", self.space_amplification_max.to_string()),
            ("layout", name(self.layout)),
            ("scrub-period", self.scrub_period.to_string()),
            ("segment", self.segment.to_string()),
            ("value-max", self.value_max.to_string()),
            ("device", name(self.device)),
            ("max-connections", self.max_connections.to_string()),
            ("stall-timeout", self.stall_timeout.to_string()),
            ("shutdown-timeout", self.shutdown_timeout.to_string()),
            ("allow-public", self.allow_public.to_string()),
            ("log-format", name(self.log_format)),
        ];
        pairs.extend(self.shards.map(|shards| ("shards", shards.to_string())));
        pairs.extend(self.capacity.map(|size| ("capacity", size.to_string())));
        pairs.extend(self.ready_file.as_ref().map(|path| ("ready-file", path.display().to_string())));
        // An existing directory has segments of its own and refuses others.
        let is_for_new = |key: &str| match key {
            "segment" => self.segment_origin != SegmentOrigin::Given,
            "value-max" => !self.is_value_max_given,
            _ => false,
        };
        let line = |(key, value): (&str, String)| match key {
            "max-connections" | "allow-public" => format!("{key} = {value}\n"),
            "shards" if value != "auto" => format!("{key} = {value}\n"),
            _ if is_for_new(key) => format!("# {key} = {} for a new directory\n", toml::Value::String(value)),
            _ => format!("{key} = {}\n", toml::Value::String(value)),
        };
        pairs.into_iter().map(line).collect()
    }
}

/// A refusal of a setting.
pub(crate) fn refuse<T>(message: impl ToString) -> Result<T, Failure> {
    Err(Failure::new(Exit::Usage, message))
}

/// The maximum length of a value if none is given.
fn value_max_for(segment: Size) -> Size {
    Size((limits::VALUE_BYTES_MAX as u64).min(segment.0 / limits::RECORD_SEGMENT_SHARE as u64))
}

/// The size of a segment if none is given, from each shard's part of the capacity.
fn segment_for(capacity: Option<Size>, shards: Option<ShardCount>) -> Size {
    let shards = match shards {
        Some(ShardCount::Number(shards)) => shards,
        Some(ShardCount::Auto) => cores(),
        None => 1,
    };
    let of_shard = capacity.map(|Size(capacity)| capacity / u64::from(shards.max(1)));
    Size(u64::from(segment_bytes_for(of_shard)))
}

/// Suffix of an error text for a bound that grows with the shards.
fn of_each(shards: u16) -> String {
    if shards > 1 { format!(" for {shards} shards") } else { String::new() }
}

/// Name of a choice in flags and files.
fn name<V: ValueEnum>(value: V) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl From<DurabilityMode> for Durability {
    fn from(mode: DurabilityMode) -> Self {
        match mode {
            DurabilityMode::Sync => Self::Sync,
            DurabilityMode::Everysec => Self::EverySecond,
            DurabilityMode::Memory => Self::Memory,
        }
    }
}

impl From<LayoutChoice> for RecordLayout {
    fn from(choice: LayoutChoice) -> Self {
        match choice {
            LayoutChoice::Log => Self::Log,
            LayoutChoice::Auto => Self::Auto,
            LayoutChoice::Sorted => Self::Sorted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;
    use crate::config::{Endpoint, SettingFlags, ShardCount, Size, file};

    fn resolve(given: SettingFlags) -> Settings {
        Settings::resolve(given, SettingFlags::default()).expect("sound")
    }

    fn refused(text: &str) -> String {
        let file = file::parse("f", text).expect("valid values");
        Settings::resolve(SettingFlags::default(), file).expect_err(text).to_string()
    }

    #[test]
    fn defaults_are_local_and_pass_their_own_check() {
        let settings = resolve(SettingFlags::default());
        for endpoint in [settings.resp, settings.memcached, settings.admin] {
            assert!(endpoint.address().is_some_and(|address| address.ip().is_loopback()));
        }
    }

    #[test]
    fn what_is_printed_reads_back_the_same() {
        for shards in [ShardCount::Auto, ShardCount::Number(3)] {
            let flags = SettingFlags {
                capacity: Some(Size(1 << 40)),
                admin: Some(Endpoint::Off),
                shards: Some(shards),
                ..SettingFlags::default()
            };
            let printed = resolve(flags).to_toml();
            let again = file::parse("f", &printed).expect("what is printed parses");
            assert_eq!(resolve(again).to_toml(), printed);
        }
    }

    #[test]
    fn harmful_settings_are_refused_with_what_to_do() {
        for (text, expected) in [
            ("resp = '0.0.0.0:6380'", "--allow-public"),
            ("admin = '[::]:1'", "--allow-public"),
            ("memory = '1M'", "at least 16M"),
            ("memory = '63M'\nshards = 4", "at least 64M for 4 shards"),
            ("segment = '3M'", "power of two"),
            ("segment = '1M'\nvalue-max = '512K'", "a quarter of a segment (256K)"),
            ("capacity = '100M'\nsegment = '64M'", "at least 8 segments, 512M, or a smaller segment"),
            ("capacity = '1K'", "at least 8 segments, 512K"),
            ("capacity = '15M'\nsegment = '1M'\nshards = 2", "16M for 2 shards"),
            ("space-amplification-max = '1.04'", "1.05 to 100"),
            ("space-amplification-max = '101'", "1.05 to 100"),
            ("stall-timeout = '0s'", "expected more"),
            ("max-connections = 0", "at least 1"),
        ] {
            assert!(refused(text).contains(expected), "{text}: {}", refused(text));
        }
        assert!(!refused("capacity = '1K'").contains("smaller"), "there is no smaller segment");
        let allowed = file::parse("f", "resp = '0.0.0.0:6380'\nallow-public = true").expect("valid");
        assert!(Settings::resolve(SettingFlags::default(), allowed).is_ok());
    }

    #[test]
    fn a_disk_takes_a_store_if_it_has_space_for_its_fewest_segments() {
        let settings = |text| resolve(file::parse("f", text).expect("valid"));
        for (text, free_bytes) in
            [("", 256 << 20), ("segment = '1M'", 4 << 20), ("segment = '1M'\nshards = 2", 8 << 20)]
        {
            assert!(settings(text).check_disk(free_bytes).is_ok(), "{text}");
            assert!(settings(text).check_disk(free_bytes - 1).is_err(), "{text}");
        }
        for (text, free_bytes, expected) in [
            ("", (12 << 20) + 5, "12M left, and a new store needs at least 4 segments of 64M, 256M; free space, or"),
            ("", 12 << 20, "--segment 512K"),
            ("", 600 << 10, "--segment 64K"),
            ("", 250 << 10, "another disk"),
            ("shards = 2", 40 << 20, "512M for 2 shards; free space, or choose smaller segments, such as --segment 1M"),
        ] {
            let error = settings(text).check_disk(free_bytes).expect_err(text).to_string();
            assert!(error.starts_with("fawn-data: ") && error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn segments_are_as_small_or_as_large_as_the_capacity_of_a_shard_needs() {
        for (text, expected) in [("", "64M"), ("capacity = '2G'", "64M"), ("capacity = '1023M'", "32M")]
            .into_iter()
            .chain([("capacity = '100M'", "4M"), ("capacity = '100M'\nshards = 2", "2M"), ("capacity = '600K'", "64K")])
            .chain([
                ("capacity = '1024G'", "64M"),
                ("capacity = '1025G'", "128M"),
                ("capacity = '1025G'\nshards = 2", "64M"),
            ])
        {
            let settings = resolve(file::parse("f", text).expect("valid"));
            assert_eq!(settings.segment.to_string(), expected, "{text}");
        }
    }

    /// Each setting once, with a value that differs from its default, in the order of `to_toml`.
    const FILE: &str = r#"dir = "elsewhere"
resp = "127.0.0.1:1"
memcached = "off"
admin = "0.0.0.0:3"
memory = "300M"
durability = "everysec"
space-amplification-max = "2.50"
layout = "auto"
scrub-period = "172800s"
segment = "1M"
value-max = "100K"
device = "portable"
max-connections = 7
stall-timeout = "8s"
shutdown-timeout = "9s"
allow-public = true
log-format = "json"
shards = 3
capacity = "50M"
ready-file = "ready"
"#;

    #[test]
    fn each_setting_comes_from_the_file_unless_it_is_given() {
        assert_eq!(FILE.lines().count(), file::known_keys().len());
        let file = || file::parse("f", FILE).expect("valid");
        let from_file = Settings::resolve(SettingFlags::default(), file()).expect("sound");
        assert_eq!(from_file.to_toml(), FILE);
        let defaults = resolve(SettingFlags::default()).to_toml();
        assert!(defaults.lines().all(|line| !FILE.contains(line)), "{defaults}");
        let other = file::parse("f", &defaults).expect("valid");
        assert_eq!(Settings::resolve(file(), other).expect("sound").to_toml(), FILE);
    }
}
