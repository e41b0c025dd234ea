//! Queries which provider ONNX Runtime assigned each node of a session's graph to.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::ptr::null;

use ort::session::Session;
use ort::sys::{OrtEpAssignedNode, OrtEpAssignedSubgraph, OrtStatusPtr};
use ort::{AsPointer, Error, Result};

/// Session option that records the assignment.
pub(super) const RECORD: &str = "session.record_ep_graph_assignment_info";

/// Returns the names of the nodes that were not assigned to `provider`, and the total number of nodes.
pub(super) fn elsewhere(session: &Session, provider: &str) -> Result<(Vec<String>, usize)> {
    let api = ort::api();
    let (mut subgraphs, mut count) = (null(), 0);
    // SAFETY: the session is alive, and the returned array lives as long as the session.
    let subgraphs: &[*const OrtEpAssignedSubgraph] = unsafe {
        check((api.Session_GetEpGraphAssignmentInfo)(
            session.ptr(),
            &raw mut subgraphs,
            &raw mut count,
        ))?;
        slice(subgraphs, count)
    };
    let (mut elsewhere, mut all) = (Vec::new(), 0);
    for subgraph in subgraphs {
        let mut name = null();
        let (mut nodes, mut count) = (null(), 0);
        // SAFETY: subgraph, its name and its nodes live as long as the session.
        let (name, nodes): (String, &[*const OrtEpAssignedNode]) = unsafe {
            check((api.EpAssignedSubgraph_GetEpName)(*subgraph, &raw mut name))?;
            check((api.EpAssignedSubgraph_GetNodes)(
                *subgraph,
                &raw mut nodes,
                &raw mut count,
            ))?;
            (text(name), slice(nodes, count))
        };
        all += nodes.len();
        if name == provider {
            continue;
        }
        for node in nodes {
            let mut name = null();
            // SAFETY: node and its name live as long as the session.
            elsewhere.push(unsafe {
                check((api.EpAssignedNode_GetName)(*node, &raw mut name))?;
                text(name)
            });
        }
    }
    Ok((elsewhere, all))
}

/// # Safety
/// `status` must be a status that ONNX Runtime returned, and must be used only once.
unsafe fn check(status: OrtStatusPtr) -> Result<()> {
    // SAFETY: required of the caller.
    unsafe { Error::result_from_status(status) }
}

/// # Safety
/// `first` must point to an array of `count` elements, unless it is null or `count` is 0.
unsafe fn slice<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: required of the caller.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// # Safety
/// `name` must be null or a C string.
unsafe fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: required of the caller.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}
