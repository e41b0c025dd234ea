//! How servers are reached: `--mcp`, and files with `mcpServers`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Maximum bytes of a file.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of servers.
const MAX_SERVERS: usize = 32;
/// Maximum bytes of a server's name.
const MAX_NAME: usize = 64;
const EXPECTED: &str =
    "expected NAME=COMMAND, NAME=URL, a URL, or the path of a JSON file with `mcpServers`";

/// A server, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Its name for the user.
    pub name: String,
    /// How it is reached.
    pub transport: Transport,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A program that reads and writes messages on its standard input and output.
    Command {
        /// The program.
        program: String,
        /// Its arguments.
        arguments: Vec<String>,
        /// Variables of its environment in addition to those of [`INHERITED`](crate::config::INHERITED).
        environment: BTreeMap<String, String>,
        /// The folder in which it runs; `None`: the current one.
        folder: Option<PathBuf>,
    },
    /// An address with streamable HTTP.
    Http {
        /// The address, `http://` or `https://`.
        url: String,
        /// Headers of each request.
        headers: BTreeMap<String, String>,
    },
}

/// Variables that a server inherits. Others may hold keys that are no business of its.
pub(crate) const INHERITED: [&str; 17] = [
    "HOME",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "USER",
    // Windows.
    "APPDATA",
    "HOMEDRIVE",
    "HOMEPATH",
    "LOCALAPPDATA",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "USERPROFILE",
];

/// Servers, and fields of files that are not followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The servers.
    pub servers: Vec<ServerConfig>,
    /// Fields that other programs read, such as `files.alwaysAllow`.
    pub not_followed: Vec<String>,
}

impl Config {
    /// Reads servers: each text is `NAME=COMMAND`, `NAME=URL`, a URL, or the path of a JSON file with `mcpServers`.
    ///
    /// # Errors
    /// If a text is none of these, a file cannot be read or has something else, two servers have one name, or there are
    /// more than 32.
    pub fn read<T: AsRef<str>>(texts: &[T]) -> Result<Self> {
        let mut config = Self::default();
        for text in texts {
            config.add(text.as_ref())?;
        }
        let names = config.servers.iter().map(|server| &server.name);
        for (index, name) in names.enumerate() {
            if config.servers[..index]
                .iter()
                .any(|other| other.name == *name)
            {
                return Err(Error::SameName { name: name.clone() });
            }
        }
        if config.servers.len() > MAX_SERVERS {
            return Err(Error::Argument {
                text: config.servers[MAX_SERVERS].name.clone(),
                expected: "expected at most 32 servers",
            });
        }
        Ok(config)
    }

    fn add(&mut self, text: &str) -> Result<()> {
        let wrong = |expected| Error::Argument {
            text: text.to_owned(),
            expected,
        };
        if is_url(text) {
            let (name, transport) = (host(text), http(text));
            let name = name.ok_or_else(|| wrong("the URL has no host"))?;
            self.servers.push(ServerConfig { name, transport });
            return Ok(());
        }
        let named = text.split_once('=').filter(|(name, _)| is_name(name));
        let Some((name, value)) = named else {
            return self.add_file(Path::new(text));
        };
        let transport = if is_url(value) {
            http(value)
        } else {
            let words = shlex::split(value).ok_or_else(|| wrong("a quote is not closed"))?;
            let mut words = words.into_iter();
            Transport::Command {
                program: words.next().ok_or_else(|| wrong(EXPECTED))?,
                arguments: words.collect(),
                environment: BTreeMap::new(),
                folder: None,
            }
        };
        self.servers.push(ServerConfig {
            name: name.to_owned(),
            transport,
        });
        Ok(())
    }

    fn add_file(&mut self, path: &Path) -> Result<()> {
        if !path.exists() {
            return Err(Error::Argument {
                text: path.display().to_string(),
                expected: EXPECTED,
            });
        }
        let failed = |source| Error::Read {
            path: path.into(),
            source,
        };
        let mut text = String::new();
        let file = File::open(path).map_err(failed)?;
        file.take(MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(failed)?;
        let wrong = |message: String| Error::File {
            path: path.into(),
            message,
        };
        if text.len() as u64 > MAX_BYTES {
            return Err(wrong(
                "longer than 1 MiB: expected a list of servers".into(),
            ));
        }
        // A byte order mark, which some editors write.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let value: Value = serde_json::from_str(text)
            .map_err(|error| wrong(format!("not valid JSON: {error}")))?;
        let servers = value.get("mcpServers").and_then(Value::as_object);
        let servers = servers.ok_or_else(|| wrong("has no object `mcpServers`".into()))?;
        for (name, fields) in servers {
            let server = fields
                .as_object()
                .ok_or_else(|| format!("`mcpServers.{name}`: expected an object"))
                .and_then(|fields| self.of_fields(name, fields));
            self.servers.extend(server.map_err(wrong)?);
        }
        Ok(())
    }

    /// Reads one server of a file; `None` if it is disabled.
    fn of_fields(
        &mut self,
        name: &str,
        fields: &Map<String, Value>,
    ) -> Result<Option<ServerConfig>, String> {
        let at = |field: &str| format!("`mcpServers.{name}.{field}`");
        if name.trim().is_empty() || name.len() > MAX_NAME || name.contains(char::is_control) {
            return Err(format!(
                "`mcpServers.{name}`: expected a name of at most {MAX_NAME} bytes without control characters"
            ));
        }
        if fields.get("disabled") == Some(&Value::Bool(true)) {
            return Ok(None);
        }
        let text = |field: &str| match fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("{}: expected a text", at(field))),
        };
        let texts = |field: &str| {
            match fields.get(field) {
            None | Some(Value::Null) => Ok(BTreeMap::new()),
            Some(Value::Object(values)) => values
                .iter()
                .map(|(name, value)| match value.as_str() {
                    Some(text) if text.contains("${") => Err(format!(
                        "{}: {name} has a variable (${{…}}), which Triad does not insert: expected its value",
                        at(field)
                    )),
                    Some(text) => Ok((name.clone(), text.to_owned())),
                    None => Err(format!("{}: expected texts", at(field))),
                })
                .collect(),
            Some(_) => Err(format!("{}: expected an object of texts", at(field))),
        }
        };
        let arguments = match fields.get("args") {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(values)) => {
                let text = |value: &Value| value.as_str().map(str::to_owned);
                let texts: Option<Vec<_>> = values.iter().map(text).collect();
                texts.ok_or_else(|| format!("{}: expected texts", at("args")))
            }
            Some(_) => Err(format!("{}: expected a list of texts", at("args"))),
        }?;
        let kind = text("type")?;
        if let Some(kind) = &kind
            && !["stdio", "http", "streamable-http", "streamableHttp"].contains(&kind.as_str())
        {
            return Err(format!(
                "{}: `{kind}` is not supported, expected stdio or http (streamable HTTP)",
                at("type")
            ));
        }
        let transport = match (text("command")?, text("url")?) {
            (Some(program), None) => Transport::Command {
                program,
                arguments,
                environment: texts("env")?,
                folder: text("cwd")?.map(PathBuf::from),
            },
            (None, Some(url)) if is_url(&url) => Transport::Http {
                url,
                headers: texts("headers")?,
            },
            (None, Some(_)) => {
                return Err(format!("{}: expected http:// or https://", at("url")));
            }
            _ => {
                return Err(format!(
                    "`mcpServers.{name}`: expected either `command` or `url`"
                ));
            }
        };
        let known = [
            "args", "command", "cwd", "disabled", "env", "headers", "type", "url",
        ];
        let others = fields
            .keys()
            .filter(|field| !known.contains(&field.as_str()));
        self.not_followed
            .extend(others.map(|field| format!("{name}.{field}")));
        Ok(Some(ServerConfig {
            name: name.to_owned(),
            transport,
        }))
    }
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

fn http(url: &str) -> Transport {
    Transport::Http {
        url: url.to_owned(),
        headers: BTreeMap::new(),
    }
}

/// Returns the host of an address, without its port.
fn host(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    let host = match host.strip_prefix('[') {
        Some(address) => address.split(']').next()?,
        None => host.split(':').next()?,
    };
    let host: String = host.replace(':', "-");
    is_name(&host).then_some(host)
}

/// Returns whether a text names a server: models read the names of tools that may begin with it.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(program: &str, arguments: &[&str]) -> Transport {
        Transport::Command {
            program: program.into(),
            arguments: arguments.iter().map(|it| (*it).to_owned()).collect(),
            environment: BTreeMap::new(),
            folder: None,
        }
    }

    #[test]
    fn a_server_is_a_command_or_an_address_by_name() {
        let one = |text: &str| Config::read(&[text]).unwrap().servers.remove(0);
        let server = one("files=npx -y @scope/files '/my files'");
        assert_eq!(server.name, "files");
        let expected = command("npx", &["-y", "@scope/files", "/my files"]);
        assert_eq!(server.transport, expected);
        for (text, name) in [
            ("https://tools.example.org:8443/mcp", "tools.example.org"),
            ("http://[::1]:9/mcp", "--1"),
            ("mine=http://127.0.0.1:1/mcp", "mine"),
        ] {
            let server = one(text);
            assert_eq!(server.name, name);
            let url = text.strip_prefix("mine=").unwrap_or(text);
            assert_eq!(server.transport, http(url));
        }
        for wrong in [
            "",
            "files=",
            "files='open",
            "nothing-here.json",
            "a b=c",
            "http://",
        ] {
            let error = Config::read(&[wrong]).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{wrong}: {error}");
        }
        let same = Config::read(&["a=x", "a=y"]).unwrap_err();
        assert!(matches!(same, Error::SameName { .. }));
    }

    #[test]
    fn a_file_has_servers_in_the_usual_form_and_wrong_fields_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcp.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Config::read(&[path.to_str().unwrap()])
        };
        let config = read(
            r#"{"mcpServers": {
                "one": {"command": "python3", "args": ["server.py"], "env": {"KEY": "1"}, "alwaysAllow": ["x"]},
                "two": {"type": "http", "url": "https://example.org/mcp", "headers": {"Authorization": "Bearer k"}},
                "off": {"command": "none", "disabled": true}
            }}"#,
        )
        .unwrap();
        assert_eq!(config.not_followed, ["one.alwaysAllow"]);
        let names: Vec<_> = config.servers.iter().map(|server| &*server.name).collect();
        assert_eq!(names, ["one", "two"]);
        let Transport::Command { environment, .. } = &config.servers[0].transport else {
            panic!()
        };
        assert_eq!(environment["KEY"], "1");
        let Transport::Http { headers, .. } = &config.servers[1].transport else {
            panic!()
        };
        assert_eq!(headers["Authorization"], "Bearer k");
        let marked = read("\u{feff}{\"mcpServers\": {\"a\": {\"command\": \"x\"}}}").unwrap();
        assert_eq!(marked.servers.len(), 1);
        for (text, words) in [
            ("{", "not valid JSON"),
            ("{}", "has no object `mcpServers`"),
            (r#"{"mcpServers": {"a": 1}}"#, "`mcpServers.a`"),
            (r#"{"mcpServers": {"a": {}}}"#, "either `command` or `url`"),
            (
                r#"{"mcpServers": {"a": {"command": "x", "url": "http://y"}}}"#,
                "either",
            ),
            (
                r#"{"mcpServers": {"a": {"command": 1}}}"#,
                "`mcpServers.a.command`",
            ),
            (
                r#"{"mcpServers": {"a": {"command": "x", "args": "y"}}}"#,
                "`mcpServers.a.args`",
            ),
            (
                r#"{"mcpServers": {"a": {"command": "x", "env": {"y": 1}}}}"#,
                "`mcpServers.a.env`",
            ),
            (
                r#"{"mcpServers": {"a": {"command": "x", "env": {"KEY": "${KEY}"}}}}"#,
                "`mcpServers.a.env`: KEY has a variable",
            ),
            (
                r#"{"mcpServers": {"a": {"url": "ftp://y"}}}"#,
                "`mcpServers.a.url`",
            ),
            (
                r#"{"mcpServers": {"a": {"type": "sse", "url": "http://y"}}}"#,
                "`sse` is not supported",
            ),
            (
                "{\"mcpServers\": {\"a\\u0007\": {\"command\": \"x\"}}}",
                "expected a name of at most 64 bytes",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
