//! Script runner: `scripts/*.txt` contain commands, `----`, and the expected output.
//!
//! `FAWN_SCRIPTS=update` rewrites the expected output; read the diff before committing it.
use crate::cluster::{Bug, MANAGER, TestCluster, TestMessage};
use fawn_chain::message::{Body, decode_frame};
use fawn_types::Durability;
use std::fmt::Write as _;
use std::path::Path;

#[derive(Default)]
struct Runner {
    cluster: Option<TestCluster>,
    held: Vec<TestMessage>,
}

fn number(word: Option<&str>, default: u64) -> u64 {
    word.map_or(default, |word| word.parse().unwrap_or_else(|_| panic!("`{word}` is not a number")))
}

fn mode(word: Option<&str>) -> Durability {
    match word {
        Some("everysec") => Durability::EverySecond,
        Some("memory") => Durability::Memory,
        _ => Durability::Sync,
    }
}

fn describe(message: &TestMessage) -> String {
    let frame = decode_frame(&message.bytes).unwrap();
    let place = |id: u32| if id == MANAGER { "m".to_owned() } else { id.to_string() };
    let what = match frame.body {
        Body::Append { after, last, upstream, .. } => format!("append ({after:?}, {last:?}] upstream {upstream:?}"),
        Body::Watermark { sent, upstream, .. } => format!("watermark sent {sent:?} upstream {upstream:?}"),
        Body::Ack { received, committed } => format!("ack received {received:?} committed {committed:?}"),
        Body::ReplayWanted { after } => format!("replay wanted after {after:?}"),
        Body::Entry(entry) => format!("entry {:?} {:?}", entry.epoch, entry.state),
        Body::Report(report) => format!("report last {:?} committed {:?}", report.last, report.committed),
        Body::Align { donor, base, cut, .. } => format!("align donor n{} base {base:?} cut {cut:?}", donor.node().0),
        Body::Equal { base } => format!("equal {base:?}"),
        Body::TransferWanted { base, cursor } => format!("copy wanted of {base:?} from {cursor:?}"),
        Body::Transfer { base, cursor, next, read_version, .. } => {
            format!("chunk of {base:?} from {cursor:?} to {next:?} read at {read_version:?}")
        }
        other => format!("{other:?}"),
    };
    format!("{}>{} {:?} {what}", place(message.from), place(message.to), frame.header.epoch)
}

impl Runner {
    fn cluster(&mut self) -> &mut TestCluster {
        self.cluster.as_mut().expect("a script begins with `cluster`")
    }

    /// The position in the network of the first message on `link` (`1>2`), of the given kind if there is one.
    fn find(&mut self, link: &str, kind: Option<&str>) -> Option<usize> {
        let wanted = format!("{link} ");
        let fits = |message: &TestMessage| {
            let text = describe(message);
            text.starts_with(&wanted) && kind.is_none_or(|kind| text.contains(&format!(" {kind}")))
        };
        self.cluster().net.iter().position(fits)
    }

    fn run(&mut self, line: &str, out: &mut String) {
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or_default();
        let first = words.next();
        let second = words.next();
        let node = number(first.filter(|word| word.parse::<u64>().is_ok()), 0) as u32;
        match command {
            "cluster" => {
                self.cluster = Some(TestCluster::new(node, mode(second), Bug::None));
            }
            "retain" => self.cluster().retained_max = node as usize,
            "run" => self.cluster().run(u64::from(node)),
            "time" => self.cluster().advance(u64::from(node)),
            "put" => (0..number(first, 1)).for_each(|_| {
                let head = self.cluster().head();
                let version = head.and_then(|head| self.cluster().put(head));
                let _ = writeln!(out, "{}", version.map_or("refused".to_owned(), |v| format!("{v:?}")));
            }),
            "turn" => self.cluster().turn(node, second != Some("nosync")),
            "deliver" | "drop" | "dup" | "hold" => self.network(command, first.expect("a link"), second, out),
            "release" if self.held.is_empty() => out.push_str("nothing is held\n"),
            "release" => {
                let message = self.held.remove(0);
                let _ = writeln!(out, "{}", describe(&message));
                self.cluster().hand_over(&message);
            }
            "crash" => self.cluster().crash(node, number(second, 0) as usize),
            "close" => self.cluster().close(node),
            "mark" => self.cluster().plant_mark(node, number(second, 0)),
            "restart" => self.cluster().restart(node),
            "fail" => self.cluster().fail(node),
            "full" | "space" | "hang" | "unhang" | "rot" | "scrub" => self.disk(node, command),
            "replace-disk" => self.cluster().replace_disk(node),
            "durability" => self.cluster().durability = mode(first),
            "epoch-records" => self.cluster().epoch_records_max = u64::from(node),
            "cut" | "mend" => {
                let ends = first.and_then(|link| link.split_once('>')).expect("a link");
                let end = |text: &str| text.parse::<u32>().expect("a node");
                let link = (end(ends.0), end(ends.1));
                let cut = &mut self.cluster().cut;
                if command == "cut" {
                    cut.insert(link)
                } else {
                    cut.remove(&link)
                };
            }
            "keep-map" => self.cluster().keep_map(),
            "lose-maps" => self.cluster().lose_maps(),
            "restart-manager" => self.cluster().start_manager(),
            "net" => {
                let lines: Vec<String> = self.cluster().net.iter().map(describe).collect();
                lines.iter().filter(|line| !line.contains("Hello")).for_each(|line| {
                    let _ = writeln!(out, "{line}");
                });
            }
            "clear-net" => self.cluster().net.clear(),
            "state" => self.state(out),
            other => panic!("unknown command `{other}`"),
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.events.drain(..).for_each(|event| {
                let _ = writeln!(out, "{event}");
            });
        }
    }

    /// Begins or ends a fault of a machine's disk.
    fn disk(&mut self, node: u32, command: &str) {
        let machine = self.cluster().machines.get_mut(&node).expect("a machine");
        match command {
            "full" | "space" => machine.is_full = command == "full",
            "hang" | "unhang" => machine.is_hung = command == "hang",
            _ => machine.is_unreadable = command == "rot",
        }
    }

    fn network(&mut self, command: &str, link: &str, kind: Option<&str>, out: &mut String) {
        let Some(place) = self.find(link, kind) else {
            let _ = writeln!(out, "no such message");
            return;
        };
        let message = self.cluster().net.remove(place);
        let _ = writeln!(out, "{}", describe(&message));
        match command {
            "deliver" => self.cluster().hand_over(&message),
            "dup" => {
                self.cluster().hand_over(&message);
                self.cluster().net.push(message);
            }
            "hold" => self.held.push(message),
            _ => {}
        }
    }

    fn state(&mut self, out: &mut String) {
        let cluster = self.cluster();
        for (id, machine) in &cluster.machines {
            let log = &machine.log;
            let epoch = machine.replica.as_ref().map(fawn_chain::Replica::epoch).unwrap_or_default();
            let (phase, last, committed) = (cluster.phase(*id), log.last(), machine.committed);
            let _ = writeln!(
                out,
                "n{id} {phase} {epoch:?} log {last:?} ({} records) committed {committed:?}",
                log.records.len()
            );
        }
        let _ = writeln!(out, "acked {}", cluster.acked.len());
    }
}

/// Runs one script; returns its text with the actual output.
fn replay(text: &str) -> String {
    let mut runner = Runner::default();
    let mut out = String::new();
    for block in text.trim_end().split("\n\n") {
        let commands = block.lines().take_while(|line| *line != "----");
        let mut said = String::new();
        let mut ran = false;
        for line in commands {
            out.push_str(line);
            out.push('\n');
            if !line.starts_with('#') && !line.trim().is_empty() {
                runner.run(line, &mut said);
                ran = true;
            }
        }
        if ran {
            let _ = write!(out, "----\n{said}");
        }
        out.push('\n');
    }
    format!("{}\n", out.trim_end())
}

#[test]
fn scripts_say_what_they_said() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/scripts");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "scripts are missing");
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let now = replay(&text);
        if std::env::var("FAWN_SCRIPTS").is_ok_and(|mode| mode == "update") {
            std::fs::write(&path, &now).unwrap();
        } else {
            assert!(now == text, "{}: expected\n{text}\nfound\n{now}", path.display());
        }
    }
}
