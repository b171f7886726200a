//! The servers under test: started on a free loopback port, pinned to cores, and stopped by process ID.
use crate::client::ClientProtocol;
use crate::{BenchError, machine};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// The durability of acknowledged writes: equal on both sides, or else the row says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerDurability {
    /// In memory only: Redis without files, memcached. FAWN's `memory` mode still writes its log.
    Memory,
    /// Written at once and synced within a second.
    EverySecond,
    /// Acknowledged after a sync.
    Sync,
}

impl PeerDurability {
    /// The name of FAWN's durability mode.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EverySecond => "everysec",
            Self::Sync => "sync",
        }
    }
}

/// Options for starting FAWN.
#[derive(Clone, Copy, Debug)]
pub struct FawnOptions<'o> {
    /// The data directory.
    pub dir: &'o Path,
    /// The durability mode.
    pub keeps: PeerDurability,
    /// The memory budget, bytes.
    pub memory_bytes: u64,
    /// Maximum number of connections.
    pub connections_max: usize,
    /// Number of shards; each runs on its own core if there are enough.
    pub shards: u16,
}

/// A running server.
pub struct ServerUnderTest {
    child: Child,
    /// The client port on 127.0.0.1.
    pub port: u16,
    /// The server's name in rows.
    pub engine: &'static str,
}

impl ServerUnderTest {
    /// Starts redis-server, pinned to core `core`, with its append-only file configured by `keeps`.
    ///
    /// # Errors
    /// If the program is missing or does not start.
    pub fn redis(dir: &Path, keeps: PeerDurability, core: usize) -> Result<Self, BenchError> {
        let port = free_port()?;
        let append = if keeps == PeerDurability::Memory { "no" } else { "yes" };
        let sync = if keeps == PeerDurability::Sync { "always" } else { "everysec" };
        let mut command = pinned("redis-server", core);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", append]);
        command.args(["--appendfsync", sync, "--dir"]).arg(dir);
        Self::start(command, port, "redis", "redis-server", "redis-server")
    }

    /// Starts memcached with one worker thread and `memory_mib` MiB of memory.
    ///
    /// # Errors
    /// See [`ServerUnderTest::redis`].
    pub fn memcached(memory_mib: u32, core: usize) -> Result<Self, BenchError> {
        let port = free_port()?;
        let mut command = pinned("memcached", core);
        command.args(["-l", "127.0.0.1", "-t", "1", "-u", "nobody", "-p", &port.to_string()]);
        command.args(["-m", &memory_mib.to_string()]);
        Self::start(command, port, "memcached", "memcached", "memcached")
    }

    /// Starts `binary serve`: one replica, one protocol, with its shards pinned to the cores from `core` on.
    ///
    /// # Errors
    /// See [`ServerUnderTest::redis`].
    pub fn fawn(
        binary: &Path,
        protocol: ClientProtocol,
        options: &FawnOptions<'_>,
        core: usize,
    ) -> Result<Self, BenchError> {
        let port = free_port()?;
        let address = format!("127.0.0.1:{port}");
        let (resp, memcached) = match protocol {
            ClientProtocol::Resp => (&*address, "off"),
            ClientProtocol::Memcached => ("off", &*address),
        };
        let cores_max = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cores = core..(core + usize::from(options.shards)).min(cores_max.max(core + 1));
        let mut command = pinned_to(&binary.to_string_lossy(), cores);
        command.args(["serve", "--resp", resp, "--memcached", memcached, "--admin", "off"]);
        command.args(["--memory", &options.memory_bytes.to_string(), "--durability", options.keeps.name()]);
        command.args(["--max-connections", &options.connections_max.to_string()]);
        command.args(["--shards", &options.shards.to_string(), "--dir"]).arg(options.dir);
        Self::start(command, port, "fawn", "fawn", "fawn")
    }

    fn start(
        mut command: Command,
        port: u16,
        engine: &'static str,
        program: &'static str,
        package: &'static str,
    ) -> Result<Self, BenchError> {
        let shown = format!("{command:?}");
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| BenchError::of_start(&error, program, package))?;
        let mut server = Self { child, port, engine };
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(BenchError::failed(
                    engine,
                    format!("ended at its start with {status}; its command was {shown}"),
                ));
            }
            if Instant::now() > deadline {
                return Err(BenchError::failed(engine, "does not accept connections on its port"));
            }
            std::thread::park_timeout(POLL);
        }
        Ok(server)
    }

    /// CPU time so far.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        machine::cpu_of(self.child.id()).unwrap_or_default()
    }

    /// Peak of the resident memory, bytes.
    #[must_use]
    pub fn resident_bytes_max(&self) -> u64 {
        machine::resident_bytes_max_of(self.child.id()).unwrap_or_default()
    }

    /// Resident memory, bytes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        machine::resident_bytes_of(self.child.id()).unwrap_or_default()
    }
}

impl Drop for ServerUnderTest {
    fn drop(&mut self) {
        // Kills only our own process, which may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pinned(program: &str, core: usize) -> Command {
    pinned_to(program, core..core + 1)
}

fn pinned_to(program: &str, cores: Range<usize>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &format!("{}-{}", cores.start, cores.end - 1), program]);
    command
}

fn free_port() -> Result<u16, BenchError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| BenchError::failed("free port", error))?;
    Ok(listener.local_addr().map_err(|error| BenchError::failed("free port", error))?.port())
}
