//! List of settings: flag, variable, key of the file, and their help text.
use super::{DeviceChoice, DurabilityMode, Endpoint, LayoutChoice, LogFormat, Ratio, ShardCount, Size, TimeSpan};
use super::{Settings, file};
use crate::failure::Failure;
use std::path::PathBuf;

/// Every setting of a server, given or not. The long names are also the keys of the configuration file.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct SettingFlags {
    /// Data directory; created if it does not exist. One server at a time [default: fawn-data].
    #[arg(long, env = "FAWN_DIR", value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Address for Redis clients (RESP2, RESP3), or `off` [default: 127.0.0.1:6380].
    #[arg(long, env = "FAWN_RESP", value_name = "ADDR:PORT")]
    pub(crate) resp: Option<Endpoint>,
    /// Address for memcached clients (text protocol), or `off` [default: 127.0.0.1:11212].
    #[arg(long, env = "FAWN_MEMCACHED", value_name = "ADDR:PORT")]
    pub(crate) memcached: Option<Endpoint>,
    /// HTTP address of /healthz, /readyz, /metrics and /status, or `off` [default: 127.0.0.1:8380].
    #[arg(long, env = "FAWN_ADMIN", value_name = "ADDR:PORT")]
    pub(crate) admin: Option<Endpoint>,
    /// Memory for indexes, caches and buffers together, such as 256M [default: a quarter of the machine's or of the
    /// container's limit].
    #[arg(long, env = "FAWN_MEMORY", value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// Threads that serve clients, each with a part of the data and of the memory: 1 to 64, or `auto` (one per
    /// core). Fixed when the directory is created [default: the directory's number; 1 for a new directory].
    #[arg(long, env = "FAWN_SHARDS", value_name = "NUMBER")]
    pub(crate) shards: Option<ShardCount>,
    /// When a write is acknowledged [default: sync].
    #[arg(long, env = "FAWN_DURABILITY", value_enum, value_name = "MODE")]
    pub(crate) durability: Option<DurabilityMode>,
    /// Maximum space for the data on the device [default: the size of the device].
    #[arg(long, env = "FAWN_CAPACITY", value_name = "SIZE")]
    pub(crate) capacity: Option<Size>,
    /// Space for each byte of live records from which segments are cleaned: 1.05 to 100. Less takes less space and
    /// writes more [default: 1.4].
    #[arg(long, env = "FAWN_SPACE_AMPLIFICATION_MAX", value_name = "RATIO")]
    pub(crate) space_amplification_max: Option<Ratio>,
    /// Whether cold records are sorted into runs, which need less memory per key and write more [default: log].
    #[arg(long, env = "FAWN_LAYOUT", value_enum, value_name = "LAYOUT")]
    pub(crate) layout: Option<LayoutChoice>,
    /// Time within which all data on the disk is read again and verified in the background, such as 30d; 0s turns that
    /// off [default: 30d].
    #[arg(long, env = "FAWN_SCRUB_PERIOD", value_name = "SPAN")]
    pub(crate) scrub_period: Option<TimeSpan>,
    /// Size of the log's segments, a power of two; a record is at most a quarter of it [default: 64M, or a sixteenth of
    /// a shard's capacity if that is less; more above 1T].
    #[arg(long, env = "FAWN_SEGMENT", value_name = "SIZE")]
    pub(crate) segment: Option<Size>,
    /// Maximum value length [default: 8M, or a quarter of a segment if that is less].
    #[arg(long, env = "FAWN_VALUE_MAX", value_name = "SIZE")]
    pub(crate) value_max: Option<Size>,
    /// Storage access: io_uring, the portable fallback, or auto: io_uring where it works [default: auto].
    #[arg(long, env = "FAWN_DEVICE", value_enum, value_name = "KIND")]
    pub(crate) device: Option<DeviceChoice>,
    /// Maximum client connections; more get an error and are closed [default: 16384].
    #[arg(long, env = "FAWN_MAX_CONNECTIONS", value_name = "NUMBER")]
    pub(crate) max_connections: Option<u32>,
    /// Disconnect a client that takes none of its replies for this long [default: 60s].
    #[arg(long, env = "FAWN_STALL_TIMEOUT", value_name = "SPAN")]
    pub(crate) stall_timeout: Option<TimeSpan>,
    /// How long a stopping server waits for clients to take their replies [default: 5s].
    #[arg(long, env = "FAWN_SHUTDOWN_TIMEOUT", value_name = "SPAN")]
    pub(crate) shutdown_timeout: Option<TimeSpan>,
    /// Listen on addresses that other machines reach. There is no authentication yet: every client that reaches the
    /// port can read and write everything.
    #[arg(long, env = "FAWN_ALLOW_PUBLIC", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) allow_public: Option<bool>,
    /// File (JSON: process, addresses) that exists while clients are served.
    #[arg(long, env = "FAWN_READY_FILE", value_name = "FILE")]
    pub(crate) ready_file: Option<PathBuf>,
    /// Format of the logs on standard error [default: human].
    #[arg(long, env = "FAWN_LOG_FORMAT", value_enum, value_name = "FORM")]
    pub(crate) log_format: Option<LogFormat>,
}

/// The sources of a server's settings.
#[derive(clap::Args)]
pub(crate) struct SettingSources {
    /// TOML file of settings; its keys are the long names of the flags below.
    #[arg(long, env = "FAWN_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: SettingFlags,
}

impl SettingSources {
    /// Combines flags, environment, file and defaults, and checks the result.
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let file = self.config.map(|path| file::read(&path)).transpose()?;
        Settings::resolve(self.flags, file.unwrap_or_default())
    }
}
