//! The place of a coordinator's state: a file, or keys in etcd.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use sprat_store::etcd::{Keys, MAX_CLUSTER};

/// The place where a coordinator keeps its state.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum State {
    /// The coordinator alone has this file, which it makes if there is none.
    File(PathBuf),
    /// Several coordinators share the keys of a cluster in etcd, and one of them leads.
    Etcd(EtcdOptions),
}

/// The keys of a cluster in etcd, and the way there.
///
/// As text it is `etcd:host=HOST:PORT,host=HOST:PORT,…` with these keys besides: `cluster`, the
/// cluster's name in etcd (default `main`); `user` and `password`, the latter a file; `ca`, the
/// file of the authority that has signed etcd's certificates; `cert` and `key`, the files of the
/// coordinator's own certificate and its key. With `ca` the connections use TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdOptions {
    /// The members of the etcd, each as a host and a port with `:` between them.
    pub(crate) hosts: Vec<String>,
    pub(crate) cluster: String,
    /// The user of the etcd, and the file of the password.
    pub(crate) user: Option<(String, PathBuf)>,
    pub(crate) ca: Option<PathBuf>,
    /// The files of the coordinator's certificate and key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// The reason why a text names no state in etcd.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} names no state in etcd: {why}")]
pub struct EtcdError {
    text: String,
    why: String,
}

impl EtcdOptions {
    /// Returns the keys of the cluster.
    #[cfg(feature = "etcd")]
    pub(crate) fn keys(&self) -> Option<Keys> {
        Keys::new(&self.cluster)
    }
}

impl FromStr for State {
    type Err = EtcdError;

    /// Parses a text that begins with `etcd:`; any other one is the path of a file.
    fn from_str(text: &str) -> Result<Self, EtcdError> {
        match text.strip_prefix("etcd:") {
            Some(rest) => etcd_options(rest)
                .map(Self::Etcd)
                .map_err(|why| EtcdError { text: text.to_owned(), why }),
            None => Ok(Self::File(text.into())),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Etcd(etcd) => write!(f, "etcd at {}", etcd.hosts.join(", ")),
        }
    }
}

fn etcd_options(text: &str) -> Result<EtcdOptions, String> {
    let mut hosts = Vec::new();
    let [mut cluster, mut user, mut password, mut ca, mut cert, mut key] = [const { None }; 6];
    for option in text.split(',').filter(|option| !option.trim().is_empty()) {
        let (name, value) = option
            .split_once('=')
            .ok_or_else(|| format!("{option:?} is no key with a value; write host=HOST:PORT"))?;
        let (name, value) = (name.trim(), value.trim());
        if value.is_empty() {
            return Err(format!("the key {name} has no value"));
        }
        let place = match name {
            "host" => {
                hosts.push(host(value)?);
                continue;
            }
            "cluster" => &mut cluster,
            "user" => &mut user,
            "password" => &mut password,
            "ca" => &mut ca,
            "cert" => &mut cert,
            "key" => &mut key,
            _ => {
                let known = "host, cluster, user, password, ca, cert and key";
                return Err(format!("there is no key {name}; the keys are {known}"));
            }
        };
        if place.replace(value.to_owned()).is_some() {
            return Err(format!("the key {name} stands there twice"));
        }
    }
    if hosts.is_empty() {
        return Err("it has no host=HOST:PORT".to_owned());
    }
    let cluster = cluster.unwrap_or_else(|| "main".to_owned());
    if Keys::new(&cluster).is_none() {
        let signs = "letters, digits, -, _ and .";
        return Err(format!("a cluster's name has 1 to {MAX_CLUSTER} {signs}"));
    }
    let both = |names, a: Option<String>, b: Option<String>| match (a, b) {
        (Some(a), Some(b)) => Ok(Some((a, PathBuf::from(b)))),
        (None, None) => Ok(None),
        _ => Err(format!("of the keys {names} one is there without the other")),
    };
    let user = both("user and password", user, password)?;
    let identity = both("cert and key", cert, key)?;
    if identity.is_some() && ca.is_none() {
        return Err("a cert needs a ca: without it the connections have no TLS".to_owned());
    }
    let identity = identity.map(|(cert, key)| (cert.into(), key));
    Ok(EtcdOptions { hosts, cluster, user, ca: ca.map(Into::into), identity })
}

/// Checks a host and a port with `:` between them.
fn host(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let is_host = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    if host.is_empty() || !host.bytes().all(is_host) || port.parse::<u16>().is_err() {
        return Err(format!("{text:?} is no host and port, such as 127.0.0.1:2379"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd(text: &str) -> EtcdOptions {
        match text.parse() {
            Ok(State::Etcd(etcd)) => etcd,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_state_is_a_file_or_etcd() {
        assert_eq!("lab.state".parse(), Ok(State::File("lab.state".into())));
        assert_eq!("./etcd:x".parse(), Ok(State::File("./etcd:x".into())));
        let one = etcd("etcd:host=127.0.0.1:2379");
        assert_eq!((one.hosts, &*one.cluster), (vec!["127.0.0.1:2379".to_owned()], "main"));
        let all = etcd(
            "etcd:host=[::1]:1, host=b.example:2,cluster=lab,user=u,password=p,ca=a,cert=c,key=k",
        );
        assert_eq!(all.hosts, ["[::1]:1", "b.example:2"]);
        assert_eq!((&*all.cluster, all.user), ("lab", Some(("u".to_owned(), "p".into()))));
        assert_eq!(all.ca, Some("a".into()));
        assert_eq!(all.identity, Some(("c".into(), "k".into())));
    }

    #[test]
    fn a_mistake_is_named() {
        for (text, why) in [
            ("etcd:", "no host"),
            ("etcd:host=", "has no value"),
            ("etcd:127.0.0.1:2379", "write host="),
            ("etcd:host=h", "no host and port"),
            ("etcd:host=h:70000", "no host and port"),
            ("etcd:host=h:1,port=2", "no key port"),
            ("etcd:host=h:1,user=u", "user and password"),
            ("etcd:host=h:1,cluster=a/b", "name has 1 to 64"),
            ("etcd:host=h:1,cluster=a,cluster=b", "twice"),
            ("etcd:host=h:1,cert=c,key=k", "needs a ca"),
        ] {
            let error = text.parse::<State>().expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
