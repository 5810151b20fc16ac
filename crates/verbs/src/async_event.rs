//! `ibv_get_async_event` and its acknowledgement: asynchronous events of the engine become events
//! of programs.

use std::ffi::{c_int, c_void};

use sprat_rdma::AsyncEvent as DeviceEvent;

use crate::abi::object::{AsyncEvent, Context, Cq as RawCq, Qp as RawQp, Srq as RawSrq};
use crate::context::OpenDevice;
use crate::cq::Cq;
use crate::engine::Engine;
use crate::entry::{INVALID, at, export, put};
use crate::log::log;
use crate::qp::Qp;
use crate::srq::Srq;

/// `IBV_EVENT_CQ_ERR`, an asynchronous event of `enum ibv_event_type`.
const CQ_ERR: c_int = 0;
const QP_FATAL: c_int = 1;
const QP_ACCESS_ERR: c_int = 3;
const SRQ_LIMIT_REACHED: c_int = 15;
const QP_LAST_WQE_REACHED: c_int = 16;

/// Logs an asynchronous event of the engine. Errors that end connections are missing here, since
/// the thread that finds one logs it in `failures`.
fn log(event: DeviceEvent) {
    match event {
        DeviceEvent::Overflow(cq) => {
            log!(Error, "completion queue {} overflows; its queue pairs are in error", cq.0)
        }
        DeviceEvent::LastWorkRequest(pair) => {
            log!(Debug, "queue pair {} takes no more receives from its shared queue", pair.0)
        }
        DeviceEvent::Limit(srq) => log!(Debug, "shared receive queue {} is below its limit", srq.0),
        _ => {}
    }
}

/// Translates an asynchronous event of the engine into C's and counts it as received; returns
/// `None` if the object is destroyed.
fn translate(engine: &Engine, event: DeviceEvent) -> Option<AsyncEvent> {
    let (element, event_type): (*mut c_void, c_int) = match event {
        DeviceEvent::Overflow(cq) => {
            // SAFETY: An object leaves the directory, which is locked now, before it is freed.
            let deliver = |cq: *mut RawCq| unsafe { &*cq.cast::<Cq>() }.async_events.deliver();
            (engine.cqs.find(cq.0, |cq| (deliver(cq), cq.cast()).1)?, CQ_ERR)
        }
        DeviceEvent::Failed { pair, cause, ours } => {
            // SAFETY: An object leaves the directory, which is locked now, before it is freed.
            let deliver = |qp: *mut RawQp| unsafe { &*qp.cast::<Qp>() }.events.deliver();
            let event = if ours && cause.is_access() { QP_ACCESS_ERR } else { QP_FATAL };
            (engine.qps.find(pair.0, |qp| (deliver(qp), qp.cast()).1)?, event)
        }
        DeviceEvent::LastWorkRequest(pair) => {
            // SAFETY: An object leaves the directory, which is locked now, before it is freed.
            let deliver = |qp: *mut RawQp| unsafe { &*qp.cast::<Qp>() }.events.deliver();
            (engine.qps.find(pair.0, |qp| (deliver(qp), qp.cast()).1)?, QP_LAST_WQE_REACHED)
        }
        DeviceEvent::Limit(srq) => {
            let deliver = |srq: *mut RawSrq| {
                // SAFETY: An object leaves the directory, which is locked now, before it is freed.
                let srq = unsafe { &*srq.cast::<Srq>() };
                srq.events.deliver();
                srq.reached();
            };
            (engine.srqs.find(srq.0, |srq| (deliver(srq), srq.cast()).1)?, SRQ_LIMIT_REACHED)
        }
        _ => return None,
    };
    Some(AsyncEvent { element, event_type })
}

export! {
    /// Waits for the next asynchronous event of an open device.
    blocking fn ibv_get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
        // SAFETY: The program passes null or an open context.
        let open = unsafe { OpenDevice::from_raw(context) }?;
        if event.is_null() {
            return Err(INVALID);
        }
        let next = loop {
            let (engine, event) = open.events.next()?;
            log(event);
            if let Some(event) = translate(engine, event) {
                break event;
            }
        };
        // SAFETY: The pointer is not null, and the program lets this call write there.
        unsafe { put(event, next) }?;
        Ok(0)
    }
}

export! {
    /// Acknowledges an asynchronous event. Its object can be destroyed once all its events are
    /// acknowledged.
    plain fn ibv_ack_async_event(event: *mut AsyncEvent) {
        // SAFETY: The program passes null or an event that it received.
        let AsyncEvent { element, event_type } = *unsafe { at(event) }?;
        // SAFETY: An object stays allocated while one of its events is not acknowledged.
        let event_counts = unsafe {
            match event_type {
                CQ_ERR => &Cq::from_raw(element.cast())?.async_events,
                SRQ_LIMIT_REACHED => &Srq::from_raw(element.cast())?.events,
                QP_FATAL | QP_ACCESS_ERR | QP_LAST_WQE_REACHED => {
                    &Qp::from_raw(element.cast())?.events
                }
                _ => return Ok(()),
            }
        };
        event_counts.ack(1);
        Ok(())
    }
}
