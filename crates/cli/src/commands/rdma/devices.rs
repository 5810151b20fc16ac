//! `sprat rdma devices`: lists the RDMA devices that a program sees under `sprat exec`.

use std::net::Ipv6Addr;

use serde_json::json;
use sprat::verbs::{Interface, interfaces};

use super::Devices;
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out::{self, Columns};

/// Runs `sprat rdma devices`.
pub(crate) fn run(args: &Devices) -> Result<(), Fail> {
    let all = interfaces().named("the interfaces of this machine")?;
    if args.json {
        return out::raw(all.iter().map(line).collect::<String>());
    }
    let mut columns = Columns::new(&["device", "interface", "state", ">mtu", "guid", "gids"]);
    for i in &all {
        columns.row([
            i.device(),
            i.name.clone(),
            state(i).to_owned(),
            i.mtu.to_string(),
            guid(i),
            gids(i).join(" "),
        ]);
    }
    out::print(columns.text())
}

fn line(i: &Interface) -> String {
    let line = json!({
        "device": i.device(), "interface": i.name, "state": state(i), "mtu": i.mtu,
        "guid": guid(i), "gids": gids(i),
    });
    format!("{line}\n")
}

fn state(i: &Interface) -> &'static str {
    if i.up { "active" } else { "down" }
}

/// Returns the GUID of an interface's RDMA device, in the form in which `ibv_devices` writes it.
fn guid(i: &Interface) -> String {
    i.guid().iter().map(|octet| format!("{octet:02x}")).collect()
}

fn gids(i: &Interface) -> Vec<String> {
    i.gids().map(|gid| Ipv6Addr::from(gid).to_string()).collect()
}
