//! Tests of FastRPC with fake drivers of both interfaces, which check every call. *It has never run on a phone.*

mod fake;
#[path = "../../../../tests/conformance/plain.rs"]
#[allow(dead_code, reason = "the conformance suite uses all of it")]
mod plain;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::io::Errno;
use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_kernels::pool::Pool;

use super::*;
use crate::cpu::Cpu;
use crate::device::Device;
use crate::hexagon::connection::Connection;
use crate::hexagon::transport::Target;
use crate::hexagon::{Between, Hexagon, program_from_environment};
use crate::subgraph::{DeviceSubgraph, FeedForward, Layer, Linear};
use fake::{Fake, Fault, Runs, SHELL};
use plain::{Plain, Random, quantized};

const INTERFACES: [Interface; 2] = [Interface::Mainline, Interface::Vendor];

/// Returns the calls of a program that is loaded, started and ended, in order. The listener's calls are on another
/// thread and not included.
fn calls(interface: Interface) -> Vec<&'static str> {
    let vendor = |calls: &[&'static str]| {
        if interface == Interface::Vendor {
            calls.to_vec()
        } else {
            Vec::new()
        }
    };
    [
        vec!["open node"],
        vendor(&["session"]),
        vec![
            "capability 6",
            "capability 3",
            "open heap",
            "allocate",
            "create",
            "listen",
        ],
        vec!["open heap", "allocate", "map", "load"],
        vendor(&["capability 258", "open heap", "allocate"]),
        vec!["add pages", "remove pages", "serve", "unload", "unmap"],
    ]
    .concat()
}

/// Returns the index of the call `name` that follows `before` other calls of this name.
fn number_of(interface: Interface, name: &str, before: usize) -> usize {
    let calls = calls(interface);
    let mut found = calls.iter().enumerate().filter(|(_, call)| **call == name);
    found
        .nth(before)
        .unwrap_or_else(|| panic!("{interface:?} has no {name}"))
        .0
}

/// Writes a file with the header of a DSP's shared object, and returns options that name it.
fn loadable(folder: &Path) -> HexagonOptions {
    let program = folder.join("libtriad_skel.so");
    let mut bytes = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\xa4\0".to_vec();
    bytes.extend((0..9000).map(|index| (index % 251) as u8));
    fs::write(&program, bytes).unwrap();
    HexagonOptions {
        patience: Duration::from_secs(20),
        transfer_bytes: 1 << 20,
        ..HexagonOptions::new(program)
    }
}

/// Starts a program on the fake, and returns the connection to it.
fn start(options: &HexagonOptions, fake: &Arc<Fake>) -> Result<Connection> {
    let (session, shared) =
        Session::start(options, Arc::clone(fake) as Arc<dyn Driver>, &fake.places)?;
    Connection::over(options, Box::new(session), shared)
}

/// Waits until no resource is open, since calls may return late.
fn assert_released(fake: &Fake, what: &str) {
    let start = Instant::now();
    while !fake.open().is_empty() && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(
        fake.open().is_empty(),
        "{what}: {:?} {:?}",
        fake.open(),
        fake.log()
    );
    assert!(fake.wrong().is_empty(), "{what}: {:?}", fake.wrong());
}

#[test]
fn a_dsp_older_than_v69_computes_on_hvx_and_the_reason_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let options = loadable(folder.path());
    let with_hmx = HexagonOptions {
        unit: Some(Unit::Hmx),
        ..options.clone()
    };
    let on = |architecture, options: &HexagonOptions| {
        let fault = Fault::Architecture(architecture);
        let fake = Arc::new(Fake::new(
            Interface::Mainline,
            &options.program,
            Runs::Nothing,
            fault,
        ));
        start(options, &fake).map(|connection| connection.unit().to_string())
    };
    let reason = "HVX, since HMX can't be used: its DSP is a v68, expected v69 or later";
    assert_eq!(on(0x68, &options).unwrap(), reason);
    // The fake's program does not have HMX, and does not say why.
    assert_eq!(on(0x69, &options).unwrap(), "HVX");
    let error = on(0x68, &with_hmx).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn every_call_is_right_and_in_order_and_everything_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let options = loadable(folder.path());
    assert_eq!(Target::read(&options.program).unwrap(), Target::Dsp);
    for interface in INTERFACES {
        let fake = Arc::new(Fake::new(
            interface,
            &options.program,
            Runs::Nothing,
            Fault::None,
        ));
        let connection = start(&options, &fake).unwrap();
        assert_eq!(
            connection.place(),
            format!("by FastRPC on the DSP of {} (v73)", fake.node().display())
        );
        assert!(connection.process().is_none());
        // The node, the buffer and its map, and those of the fake's program. Heap, shell and pages are not needed any
        // more.
        assert_eq!(fake.open().len(), 5, "{:?}", fake.open());
        drop(connection);
        assert_eq!(fake.open(), [""; 0]);
        assert_eq!(fake.wrong(), [""; 0]);
        assert_eq!(fake.log(), [&calls(interface)[..], &["exit"]].concat());
    }
}

#[test]
fn a_vendors_driver_that_has_memory_for_domains_is_asked_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let options = loadable(folder.path());
    let fake = Arc::new(Fake::new(
        Interface::Vendor,
        &options.program,
        Runs::Nothing,
        Fault::OwnMemory,
    ));
    drop(start(&options, &fake).unwrap());
    assert_released(&fake, "it has memory");
    let asked = number_of(Interface::Vendor, "capability 258", 0);
    assert_eq!(
        fake.log()[asked..asked + 3],
        ["capability 258", "add pages", "remove pages"]
    );
}

#[test]
fn every_call_that_fails_is_an_error_that_names_it_and_says_what_to_do_and_releases_everything() {
    let folder = tempfile::tempdir().unwrap();
    let options = loadable(folder.path());
    let heap = "heap failed";
    let (rights, restart) = ("run triad from adb's shell", "restart the phone");
    let (info, taken) = (
        "FASTRPC_IOCTL_GET_DSP_INFO",
        "end another program that uses it",
    );
    let loader = "FASTRPC_IOCTL_INVOKE of the loader";
    for interface in INTERFACES {
        let (node, create) = match interface {
            Interface::Mainline => (
                "fastrpc-cdsp failed",
                "FASTRPC_IOCTL_INIT_CREATE of an unsigned protection domain",
            ),
            Interface::Vendor => (
                "adsprpc-smd failed",
                "FASTRPC_IOCTL_INIT_ATTRS of an unsigned protection domain",
            ),
        };
        // A call, the number of calls of its name before it, and the error: what it names, where, and its advice.
        type Case<'a> = ((&'a str, usize), Errno, &'a str, &'a str, &'a str);
        let mut cases: Vec<Case> = vec![
            (("open node", 0), Errno::ACCESS, "open", node, rights),
            (("open node", 0), Errno::PERM, "open", node, rights),
            (("open node", 0), Errno::BUSY, "open", node, taken),
            (("open node", 0), Errno::NODEV, "open", node, restart),
            (("capability 6", 0), Errno::IO, info, node, restart),
            (("capability 3", 0), Errno::OPNOTSUPP, info, node, restart),
            (
                ("open heap", 0),
                Errno::ACCESS,
                "open",
                heap,
                "give this user rights to it",
            ),
            (
                ("allocate", 0),
                Errno::NOMEM,
                "DMA_HEAP_IOCTL_ALLOC",
                heap,
                "or free memory",
            ),
            (
                ("create", 0),
                Errno::CONNREFUSED,
                create,
                node,
                "does not allow unsigned programs",
            ),
            (("create", 0), Errno::PERM, create, node, rights),
            (("create", 0), Errno::TIMEDOUT, create, node, restart),
            (
                ("listen", 0),
                Errno::PIPE,
                "FASTRPC_IOCTL_INVOKE of the listener",
                node,
                restart,
            ),
            (
                ("open heap", 1),
                Errno::NOENT,
                "open",
                heap,
                "give this user rights to it",
            ),
            (
                ("allocate", 1),
                Errno::NOMEM,
                "DMA_HEAP_IOCTL_ALLOC",
                heap,
                "or free memory",
            ),
            (
                ("map", 0),
                Errno::NOMEM,
                "FASTRPC_IOCTL_MEM_MAP",
                node,
                taken,
            ),
            (("load", 0), Errno::CONNRESET, loader, node, restart),
            // The domain reports errors of its own requests itself; here as a listener without memory.
            (("add pages", 0), Errno::NOMEM, loader, node, restart),
            (("remove pages", 0), Errno::INVAL, loader, node, restart),
            (
                ("serve", 0),
                Errno::CONNRESET,
                "can't be used as the device program",
                "its domain on the DSP ended",
                "dsp",
            ),
        ];
        if interface == Interface::Vendor {
            let session = "FASTRPC_IOCTL_GETINFO";
            cases.extend([
                (("session", 0), Errno::USERS, session, node, taken),
                (("session", 0), Errno::ACCESS, session, node, rights),
                (("session", 0), Errno::CHRNG, session, node, restart),
                // If a driver does not have the attribute, it is expected to have the memory, but this one requires it
                // from the process.
                (("capability 258", 0), Errno::INVAL, loader, node, restart),
                (("open heap", 2), Errno::ACCESS, loader, node, restart),
                (("allocate", 2), Errno::NOMEM, loader, node, restart),
            ]);
        }
        for ((name, before), errno, call, place, advice) in cases {
            let what = format!("{interface:?}: {errno:?} of {name} {before}");
            let (index, calls) = (number_of(interface, name, before), calls(interface));
            let fault = Fault::Call(index, errno.raw_os_error());
            let fake = Arc::new(Fake::new(interface, &options.program, Runs::Nothing, fault));
            let Err(error) = start(&options, &fake) else {
                panic!("{what}: it is started")
            };
            let text = error.to_string();
            assert!(
                text.contains(call) && text.contains(place) && text.contains(advice),
                "{what}: {text}"
            );
            assert_eq!(fake.log()[..=index], calls[..=index], "{what}");
            if (number_of(interface, "load", 0) + 1..number_of(interface, "serve", 0))
                .contains(&index)
            {
                // The fake finds that its memory is missing.
                let wrong = fake.wrong();
                assert_eq!(
                    wrong.last().unwrap(),
                    "the listener has the program, and pages",
                    "{what}"
                );
                assert_eq!(
                    wrong.len(),
                    1 + usize::from(name == "capability 258"),
                    "{what}: {wrong:?}"
                );
                assert!(fake.open().is_empty(), "{what}: {:?}", fake.open());
            } else {
                assert!(
                    text.contains(&io::Error::from(errno).to_string()),
                    "{what}: {text}"
                );
                assert_released(&fake, &what);
            }
        }
    }
}

#[test]
fn whatever_the_dsp_refuses_by_a_status_is_an_error_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let options = loadable(folder.path());
    for interface in INTERFACES {
        let status = |name, status| Fault::Status(number_of(interface, name, 0), status);
        let mut cases = vec![
            (
                status("create", 0x27),
                interface.name_of_create(),
                "the DSP returned 0x27",
            ),
            (
                status("listen", 0x200),
                "FASTRPC_IOCTL_INVOKE of the listener",
                "the DSP returned 0x200",
            ),
            (
                status("load", 0x14),
                "FASTRPC_IOCTL_INVOKE of the loader",
                "the DSP returned 0x14",
            ),
            (
                Fault::NotLoaded,
                "the DSP does not load it (0x80000406): no such symbol",
                "run hexagon/build",
            ),
            (
                status("serve", 4),
                "the memory was not written by this version of triad",
                "libtriad_skel.so",
            ),
            (
                status("serve", 20),
                "the DSP has no vector context for it",
                "libtriad_skel.so",
            ),
            (
                Fault::Architecture(0x66),
                "it is a v66 with 4 vector contexts, expected v67 or later",
                "another processor",
            ),
            (
                Fault::Contexts(0),
                "it is a v73 with 0 vector contexts, expected v67 or later",
                "another processor",
            ),
            (
                Fault::Address(0),
                "FASTRPC_IOCTL_MEM_MAP of",
                "it returned 0x0, which is no address of the DSP",
            ),
            (
                Fault::Address(u64::MAX - 9),
                "FASTRPC_IOCTL_MEM_MAP of",
                "which is no address of the DSP",
            ),
            (
                Fault::Unmappable,
                "mmap of a buffer of",
                "give this user rights",
            ),
        ];
        if interface == Interface::Vendor {
            cases.push((
                status("session", 0x2e),
                "FASTRPC_IOCTL_GETINFO of",
                "the DSP returned 0x2e",
            ));
            cases.push((
                Fault::Unmapped,
                "FASTRPC_IOCTL_GETINFO of",
                "it returned 0, expected 1",
            ));
        }
        for (fault, reason, advice) in cases {
            let what = format!("{interface:?}, {fault:?}");
            let fake = Arc::new(Fake::new(interface, &options.program, Runs::Nothing, fault));
            let Err(error) = start(&options, &fake) else {
                panic!("{what}: it is started")
            };
            let text = error.to_string();
            assert!(
                text.contains(reason) && text.contains(advice),
                "{what}: {text}"
            );
            assert_released(&fake, &what);
        }
    }
}

#[test]
fn parts_that_are_not_there_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let options = loadable(folder.path());
    let fake = Fake::new(
        Interface::Mainline,
        &options.program,
        Runs::Nothing,
        Fault::None,
    );
    let whole = fake.places.clone();
    let fake = Arc::new(fake);
    let refusal = |places: &Places| {
        let Err(error) = Session::start(&options, Arc::clone(&fake) as Arc<dyn Driver>, places)
        else {
            panic!("{places:?}: it is started")
        };
        error.to_string()
    };
    assert_eq!(
        whole.report(),
        format!("{} (the driver of Linux) is there", fake.node().display())
    );
    let none = Places {
        nodes: whole.nodes[..1].to_vec(),
        ..whole.clone()
    };
    assert_eq!(
        none.report(),
        format!("this machine has no {}", none.nodes[0].0.display())
    );
    let text = refusal(&none);
    assert!(
        text.contains("it is for a phone's DSP") && text.contains("fastrpc-none"),
        "{text}"
    );
    // The first of two existing nodes is used, for either interface.
    fs::write(&whole.nodes[2].0, "").unwrap();
    assert_eq!(
        whole.report(),
        format!(
            "{} (the driver of Linux) is there",
            whole.nodes[1].0.display()
        )
    );
    let vendors = Places {
        nodes: whole.nodes[2..].to_vec(),
        ..whole.clone()
    };
    assert_eq!(
        vendors.report(),
        format!(
            "{} (the vendor's driver) is there",
            whole.nodes[2].0.display()
        )
    );
    let shellless = Places {
        shells: whole.shells[..1].to_vec(),
        heap: "/nowhere".into(),
        ..whole.clone()
    };
    let report = shellless.report();
    assert!(
        report.contains("is there, but not the heap /nowhere nor the shell")
            && report.contains("no-shell"),
        "{report}"
    );
    let text = refusal(&shellless);
    assert!(
        text.contains("finding the shell of fastrpc_shell_unsigned_3 failed: there is none at"),
        "{text}"
    );
    fs::write(&whole.shells[1], "").unwrap();
    assert!(refusal(&whole).contains("it has 0 bytes"));
    fs::write(&whole.shells[1], SHELL).unwrap();
    fs::remove_file(&options.program).unwrap();
    assert!(refusal(&whole).contains("libtriad_skel.so: "));
    assert_released(&fake, "nothing was started");
}

#[test]
fn a_dsp_that_hangs_is_waited_for_no_longer_than_the_patience() {
    let folder = tempfile::tempdir().unwrap();
    let options = HexagonOptions {
        patience: Duration::from_millis(200),
        ..loadable(folder.path())
    };
    for (interface, hanging) in INTERFACES
        .into_iter()
        .flat_map(|one| ["create", "listen", "load"].map(|call| (one, call)))
    {
        let fault = Fault::Hangs(number_of(interface, hanging, 0));
        let fake = Arc::new(Fake::new(interface, &options.program, Runs::Nothing, fault));
        let Err(error) = start(&options, &fake) else {
            panic!("{hanging}: it is started")
        };
        assert!(
            error.to_string().contains("did not start it within 0.2 s"),
            "{error}"
        );
        // The resources of the call are released when it returns.
        fake.wake();
        assert_released(&fake, &format!("{interface:?}, {hanging}"));
    }
}

#[test]
fn a_program_that_does_not_end_loses_its_domain() {
    let folder = tempfile::tempdir().unwrap();
    let options = HexagonOptions {
        patience: Duration::from_millis(200),
        ..loadable(folder.path())
    };
    for interface in INTERFACES {
        let fake = Arc::new(Fake::new(
            interface,
            &options.program,
            Runs::NothingForEver,
            Fault::None,
        ));
        let patient = HexagonOptions {
            patience: Duration::from_secs(20),
            ..options.clone()
        };
        let (mut session, shared) =
            Session::start(&patient, Arc::clone(&fake) as Arc<dyn Driver>, &fake.places).unwrap();
        session.grace = Duration::from_millis(50);
        let mut connection = Connection::over(&options, Box::new(session), shared).unwrap();
        // The program makes no progress either.
        let error = connection
            .request(crate::hexagon::protocol::Operation::Drop, 0, &[])
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("its domain on the DSP did nothing for 0.2 s, and was ended"),
            "{error}"
        );
        drop(connection);
        assert_released(&fake, "it was ended");
        // The domain ends first, since the program may use the memory until then.
        let calls = calls(interface);
        assert_eq!(
            fake.log(),
            [
                &calls[..calls.len() - 2],
                &["exit", "unload", "unmap", "exit"]
            ]
            .concat()
        );
    }
}

/// Returns options and a fake that runs the device program named by the environment, or `None` if it names none.
fn emulated(
    interface: Interface,
    fault: Fault,
    folder: &Path,
) -> Option<(HexagonOptions, Arc<Fake>)> {
    let program: PathBuf = match program_from_environment() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("skipped: {error}");
            return None;
        }
    };
    let options = loadable(folder);
    let runs = Runs::Emulator(options.emulator.clone(), program);
    let fake = Arc::new(Fake::new(interface, &options.program, runs, fault));
    Some((options, fake))
}

fn run(device: &dyn Device, subgraph: &DeviceSubgraph, rows: usize) -> Result<Vec<Vec<u32>>> {
    let width = subgraph.in_features();
    let input = quantized(&Random::new(7).floats(rows * width, 1.5), width, 0.01);
    let mut outs: Vec<_> = subgraph
        .outputs()
        .iter()
        .map(|features| vec![0.5; rows * features])
        .collect();
    let views = outs
        .iter_mut()
        .zip(subgraph.outputs())
        .map(|(out, features)| OutputMut::new(out, features));
    device
        .prepare(subgraph, rows)?
        .run(input.view(), &mut views.collect::<Vec<_>>())?;
    Ok(outs
        .iter()
        .map(|out| out.iter().map(|x| x.to_bits()).collect())
        .collect())
}

/// Returns concatenated linear layers, and feed-forwards of all kinds.
fn subgraphs() -> Vec<DeviceSubgraph> {
    let mut random = Random::new(3);
    let mut layer = |out, of| Plain::random(&mut random, out, of, true) as Arc<dyn Layer>;
    let layers = vec![layer(64, 61), layer(20, 61)];
    let mut all = vec![
        DeviceSubgraph::Linear(Linear {
            input_scale: 0.01,
            layers,
        }),
        DeviceSubgraph::Linear(Linear {
            input_scale: 0.01,
            layers: vec![layer(1, 1)],
        }),
    ];
    let activations = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::ReluSquared,
    ];
    for (index, activation) in activations.into_iter().enumerate() {
        for is_odd in [false, true] {
            all.push(DeviceSubgraph::FeedForward(FeedForward {
                input_scale: 0.01,
                up: layer(270, 96),
                gate: is_odd.then(|| layer(270, 96)),
                activation,
                inner_scale: 0.006,
                smoothing: (index == 0).then(|| vec![0.5; 270].into()),
                down: layer(96, 270),
                return_inner: is_odd,
                fixed_point: false,
            }));
        }
    }
    all
}

#[test]
fn subgraphs_have_the_bits_of_the_cpu_through_fastrpc() {
    let folder = tempfile::tempdir().unwrap();
    let cpu = Cpu::new(Arc::new(Pool::new(1).unwrap()));
    // As many threads as the fake has contexts, or fewer.
    for (interface, between, asked, threads) in [
        (Interface::Mainline, Between::Device, None, 4),
        (Interface::Vendor, Between::Host, Some(2), 2),
        (Interface::Vendor, Between::Device, None, 4),
        (Interface::Mainline, Between::Host, Some(7), 4),
        (Interface::Vendor, Between::Host, None, 6),
        (Interface::Mainline, Between::Host, Some(99), 8),
    ] {
        // A v79 has six contexts. With more than eight, the number of threads is the protocol's maximum.
        let fault =
            [Fault::None, Fault::Contexts(6), Fault::Contexts(12)][(threads.max(4) - 4) / 2];
        let Some((options, fake)) = emulated(interface, fault, folder.path()) else {
            return;
        };
        let options = HexagonOptions {
            between,
            threads: asked,
            ..options
        };
        let hexagon = Hexagon::over(&options, vec![start(&options, &fake).unwrap()]);
        assert_eq!(hexagon.threads(), threads);
        for (index, subgraph) in subgraphs().iter().enumerate() {
            for rows in [1, 67, 300] {
                let expected = run(&cpu, subgraph, rows).unwrap();
                assert!(
                    run(&hexagon, subgraph, rows).unwrap() == expected,
                    "subgraph {index}, {rows} rows, {between:?}"
                );
            }
        }
        drop(hexagon);
        // The program ended in order, and so its memory was released in order.
        assert_eq!(fake.log(), [&calls(interface)[..], &["exit"]].concat());
        assert_released(&fake, "all ran");
    }
}

#[test]
fn a_program_that_reports_other_threads_than_it_was_told_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = loadable(folder.path());
    // The host asked for as many threads as there are contexts.
    for threads in [0, 5, u64::MAX] {
        let fake = Arc::new(Fake::new(
            Interface::Vendor,
            &options.program,
            Runs::Threads(threads),
            Fault::None,
        ));
        let Err(error) = start(&options, &fake) else {
            panic!("{threads}: it is started")
        };
        let reason = format!("it reports {threads} threads that compute, expected 1 to 4");
        assert!(error.to_string().contains(&reason), "{error}");
        assert_released(&fake, &reason);
    }
}

#[test]
fn sums_that_were_not_written_or_are_not_seen_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let options = loadable(folder.path());
    for out in [7, 8] {
        let fake = Arc::new(Fake::new(
            Interface::Mainline,
            &options.program,
            Runs::Claims,
            Fault::None,
        ));
        let hexagon = Hexagon::over(&options, vec![start(&options, &fake).unwrap()]);
        let layers = vec![Plain::random(&mut Random::new(1), out, 8, false) as Arc<dyn Layer>];
        let subgraph = DeviceSubgraph::Linear(Linear {
            input_scale: 0.01,
            layers,
        });
        // With this many rows, the sums lie beyond the image, which was transferred before. They are zeros, which are
        // consistent.
        let error = run(&hexagon, &subgraph, 300).map(drop).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("does not add up to its check sums"),
            "{out}: {error}"
        );
        drop(hexagon);
        assert_released(&fake, "it failed");
    }
}

#[test]
fn a_domain_that_ends_within_a_run_is_an_error_and_stays_one() {
    let folder = tempfile::tempdir().unwrap();
    let Some((options, fake)) = emulated(Interface::Vendor, Fault::None, folder.path()) else {
        return;
    };
    let hexagon = Hexagon::over(&options, vec![start(&options, &fake).unwrap()]);
    let layers = vec![Plain::random(&mut Random::new(1), 3072, 3072, false) as Arc<dyn Layer>];
    let subgraph = DeviceSubgraph::Linear(Linear {
        input_scale: 0.01,
        layers,
    });
    let waker = {
        let fake = Arc::clone(&fake);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            fake.wake();
        })
    };
    let error = loop {
        if let Err(error) = run(&hexagon, &subgraph, 64) {
            break error.to_string();
        }
    };
    waker.join().unwrap();
    assert!(
        error.starts_with(
            "npu:hexagon failed: its domain on the DSP ended: FASTRPC_IOCTL_INVOKE of "
        ),
        "{error}"
    );
    assert_eq!(run(&hexagon, &subgraph, 1).unwrap_err().to_string(), error);
    drop(hexagon);
    assert_released(&fake, "it ended");
}

#[test]
fn a_domain_gets_the_device_program_and_pages_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let options = loadable(folder.path());
    let bytes = fs::read(&options.program).unwrap();
    let fake = Arc::new(Fake::new(
        Interface::Vendor,
        &options.program,
        Runs::Nothing,
        Fault::None,
    ));
    let connection = start(&options, &fake).unwrap();
    let words = domain::words;
    let (request, unsupported, no_module, no_file) = (Err(14), Err(20), Err(0x3e), Err(0x45));
    // Opens interfaces, and files with other names.
    assert_eq!(
        fake.ask(0, 0, &[&words(&[5, 8]), b"libc\0"], &[8, 8]),
        no_module
    );
    for name in [
        &b"/etc/passwd\0"[..],
        b"libtriad_skel.so/\0",
        b"../libtriad_skel.so.old\0",
        b"\0",
    ] {
        assert_eq!(
            fake.ask(1, 0, &[&words(&[name.len() as u32, 2]), name, b"r\0"], &[4]),
            no_file
        );
    }
    assert_eq!(
        fake.ask(1, 0, &[&words(&[3, 2]), b"no end", b"r\0"], &[4]),
        request
    );
    let file = fake
        .ask(
            1,
            0,
            &[&words(&[0, 2]), b"/a/libtriad_skel.so\0", b"r\0"],
            &[4],
        )
        .unwrap();
    let file = domain::word(&file[0], 0);
    // Reads from the position that was set, up to the end.
    let number = |method, input: &[u32], out: usize| {
        fake.ask(1, method, &[&words(input)], &[out][..usize::from(out > 0)])
    };
    assert_eq!(
        number(9, &[file, (-5i32).cast_unsigned(), 2], 0),
        Ok(vec![])
    );
    assert_eq!(
        number(8, &[file], 4),
        Ok(vec![words(&[bytes.len() as u32 - 5])])
    );
    let read = fake.ask(1, 4, &[&words(&[file, 8])], &[8, 8]).unwrap();
    assert_eq!(
        read,
        [
            words(&[5, 1]),
            [&bytes[bytes.len() - 5..], &[0; 3]].concat()
        ]
    );
    assert_eq!(number(12, &[file], 4), Ok(vec![words(&[1])]));
    assert_eq!(number(11, &[file], 0), Ok(vec![]));
    assert_eq!(number(12, &[file], 4), Ok(vec![words(&[0])]));
    // Positions before the beginning and after the end, an unknown origin, a read larger than the buffer, another file,
    // and an unknown method.
    for (offset, whence) in [(-1i32, 0), (1, 2), (i32::MIN, 1), (0, 3)] {
        assert_eq!(
            number(9, &[file, offset.cast_unsigned(), whence], 0),
            request
        );
    }
    assert_eq!(fake.ask(1, 4, &[&words(&[file, 9])], &[8, 8]), request);
    assert_eq!(number(10, &[file + 1], 8), request);
    assert_eq!(number(5, &[file], 0), unsupported);
    assert_eq!(number(3, &[file], 0), Ok(vec![]));
    assert_eq!(number(3, &[file], 0), request);
    // Memory with other flags, memory of no bytes, and removal of memory that was not added.
    assert_eq!(
        fake.ask(2, 0, &[&words(&[0, 0, 3, 0, 4096])], &[8]),
        unsupported
    );
    assert_eq!(
        fake.ask(2, 0, &[&words(&[0, 0, 0x1000, 0, 0])], &[8]),
        unsupported
    );
    assert_eq!(fake.ask(2, 1, &[&words(&[4096, 4096])], &[]), request);
    for bytes in [(1 << 32) + 1, u64::MAX] {
        let wide = [0, 0x1000, 0, bytes].map(u64::to_le_bytes).concat();
        assert_eq!(
            fake.ask(2, 2, &[&wide], &[16]),
            Err(2),
            "{bytes} bytes, more than a DSP addresses"
        );
    }
    assert_eq!(fake.ask(9, 0, &[], &[]), request);
    drop(connection);
    assert_released(&fake, "it was asked");
}

#[test]
fn whatever_bytes_a_domain_asks_with_the_listener_responds_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let options = loadable(folder.path());
    for driver in INTERFACES {
        let fake = Arc::new(Fake::new(
            driver,
            &options.program,
            Runs::Nothing,
            Fault::None,
        ));
        let connection = start(&options, &fake).unwrap();
        let number = prop_oneof![0..20u32, any::<u32>(), Just(0x1000)];
        let request = (
            0..4u32,
            0..40u32,
            0..4u32,
            0..4u32,
            prop::collection::vec(number, 0..20),
            0..80usize,
        );
        proptest!(|((interface, method, ins, outs, numbers, cut) in request)| {
            let mut bytes = domain::words(&numbers);
            bytes.truncate(cut);
            let scalars = method << 24 | ins << 16 | outs << 8;
            prop_assert!(fake.ask_bytes(interface, scalars, bytes).is_some());
        });
        drop(connection);
        // Requested pages belong to the domain, and were never removed with another length.
        assert!(fake.open().is_empty(), "{:?}", fake.open());
        assert!(fake.wrong().is_empty(), "{:?}", fake.wrong());
    }
}
