//! Text for the user once the demo serves: addresses, and three commands for the installed tools.
use super::marker::Marker;
use crate::server::ListenAddrs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Number of commands shown.
const COMMANDS: usize = 3;

/// The whole text.
pub(super) fn text(listen_addrs: &ListenAddrs, held: &Marker, dir: &Path) -> String {
    let mut lines = vec!["\nserving".to_owned()];
    for (name, place) in [("Redis clients on", listen_addrs.resp), ("memcached clients on", listen_addrs.memcached)] {
        lines.extend(place.map(|place| format!("  {name:<21} {place}")));
    }
    lines.extend(listen_addrs.admin.map(|place| format!("  {:<21} http://{place}", "operators at")));
    lines.push("\ntry next, in another terminal".to_owned());
    let commands = commands(listen_addrs, &held.example, &InstalledTools::found());
    lines.extend(commands.iter().map(|command| format!("  {command}")));
    let dir = quoted(&dir.display().to_string());
    lines.push(format!("\nCtrl-C stops it; started again it finds its data; `rm -r {dir}` removes them"));
    lines.join("\n")
}

/// Installed tools.
struct InstalledTools {
    redis_cli: bool,
    nc: bool,
    curl: bool,
    /// This program, as the user would type it.
    fawn: String,
}

impl InstalledTools {
    fn found() -> Self {
        let dirs: Vec<PathBuf> =
            std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
        let has = |name: &str| dirs.iter().any(|dir| dir.join(name).is_file());
        Self { redis_cli: has("redis-cli"), nc: has("nc"), curl: has("curl"), fawn: own_name(&dirs) }
    }
}

/// The program's name if the shell finds it, else its path.
fn own_name(path_dirs: &[PathBuf]) -> String {
    let Ok(own) = std::env::current_exe() else { return "fawn".to_owned() };
    if own.parent().is_some_and(|dir| path_dirs.iter().any(|known| known == dir)) {
        return "fawn".to_owned();
    }
    let here = std::env::current_dir().unwrap_or_default();
    quoted(&own.strip_prefix(here).unwrap_or(&own).display().to_string())
}

/// The first three possible commands.
fn commands(listen_addrs: &ListenAddrs, example: &str, tools: &InstalledTools) -> Vec<String> {
    let key = quoted(example);
    let mut commands = Vec::new();
    if let Some(place) = listen_addrs.resp {
        commands.push(redis(place, tools, &format!("get {key}")));
    }
    if let Some(place) = listen_addrs.memcached.filter(|_| is_memcached_key(example)) {
        commands.push(over_tcp(place, tools, &format!("get {example}\\r\\nquit\\r\\n")));
    }
    if let Some(place) = listen_addrs.admin {
        commands.push(match tools.curl {
            true => format!("curl -s http://{place}/status"),
            false => over_tcp(place, tools, "GET /status HTTP/1.0\\r\\n\\r\\n"),
        });
    }
    if let Some(place) = listen_addrs.resp {
        commands.push(redis(place, tools, "set greeting hello"));
        commands.push(redis(place, tools, "get greeting"));
    }
    commands.truncate(COMMANDS);
    commands
}

fn redis(place: SocketAddr, tools: &InstalledTools, words: &str) -> String {
    match (tools.redis_cli, place.ip().to_string().as_str()) {
        (true, "127.0.0.1") => format!("redis-cli -p {} {words}", place.port()),
        (true, host) => format!("redis-cli -h {host} -p {} {words}", place.port()),
        (false, _) => format!("{} {words} --server {place}", tools.fawn),
    }
}

/// Sends `words` (in the syntax of `printf`) and prints the reply, by netcat or by bash alone.
fn over_tcp(place: SocketAddr, tools: &InstalledTools, words: &str) -> String {
    let (host, port) = (place.ip(), place.port());
    match tools.nc {
        true => format!("printf '{words}' | nc {host} {port}"),
        false => format!("bash -c \"exec 3<>/dev/tcp/{host}/{port}; printf '{words}' >&3; cat <&3\""),
    }
}

/// Whether the key fits a line of memcached's protocol within shell quotes.
fn is_memcached_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(is_plain) && key.len() <= fawn_types::limits::MEMCACHED_KEY_BYTES_MAX
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-' | b'_' | b'/' | b':')
}

/// Quoted as one word for a shell.
fn quoted(word: &str) -> String {
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::{InstalledTools, commands, quoted};
    use crate::server::ListenAddrs;

    #[test]
    fn commands_fit_what_is_there() {
        let at = |port| Some(([127, 0, 0, 1], port).into());
        let listen_addrs = ListenAddrs { resp: at(1), memcached: at(2), admin: at(3) };
        let all = InstalledTools { redis_cli: true, nc: true, curl: true, fawn: "fawn".to_owned() };
        let printed = commands(&listen_addrs, "bash", &all);
        let expected = [
            "redis-cli -p 1 get bash",
            r"printf 'get bash\r\nquit\r\n' | nc 127.0.0.1 2",
            "curl -s http://127.0.0.1:3/status",
        ];
        assert_eq!(printed, expected);
        let none = InstalledTools { redis_cli: false, nc: false, curl: false, fawn: "target/release/fawn".to_owned() };
        let printed = commands(&ListenAddrs { resp: at(1), ..ListenAddrs::default() }, "a b", &none);
        assert_eq!(printed[0], "target/release/fawn get 'a b' --server 127.0.0.1:1");
        assert_eq!(printed.len(), 3);
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
