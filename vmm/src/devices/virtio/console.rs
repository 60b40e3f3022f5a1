//! A console device with named ports (Virtio 1.2, 5.3), each a stream to and from a socket of ours.

use super::{Request, Virtio, Virtqueue, spawn};
use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A stream that the guest finds by its name, in `/sys/class/virtio-ports/*/name`.
pub struct Port {
    /// Its name in the guest.
    pub name: String,
    /// Its other end. What the guest writes comes out there, at the pace at which it is read.
    pub socket: UnixStream,
}

/// The device.
pub struct Console {
    /// For each port one in which it receives and one in which it sends; behind those of the first port, the two of
    /// control.
    queues: Vec<Arc<Virtqueue>>,
    ports: Vec<Port>,
    /// Which ports the guest has open.
    open: Arc<Open>,
    config: [u8; 12],
}

/// Which ports the guest has open: what comes to others is dropped there.
#[derive(Default)]
struct Open {
    state: Mutex<OpenState>,
    changed: Condvar,
}

#[derive(Default)]
struct OpenState {
    ports: HashSet<u32>,
    is_over: bool,
}

impl Open {
    fn set(&self, port: u32, is_open: bool) {
        let mut state = self.lock();
        if is_open {
            state.ports.insert(port)
        } else {
            state.ports.remove(&port)
        };
        self.changed.notify_all();
    }

    fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Waits until the guest has opened `port`. Says whether it did.
    fn wait(&self, port: u32) -> bool {
        let closed = |state: &mut OpenState| !state.is_over && !state.ports.contains(&port);
        let state = self.changed.wait_while(self.lock(), closed).unwrap_or_else(PoisonError::into_inner);
        !state.is_over
    }

    fn lock(&self) -> MutexGuard<'_, OpenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// There are several ports, and control messages.
const MULTIPORT: u64 = 1 << 1;
/// Bytes carried at a time, at most.
const CHUNK: usize = 64 << 10;

/// Control messages (5.3.6.2): a port, an event and a value.
mod event {
    pub(super) const DEVICE_READY: u16 = 0;
    pub(super) const PORT_ADD: u16 = 1;
    pub(super) const PORT_READY: u16 = 3;
    pub(super) const PORT_OPEN: u16 = 6;
    pub(super) const PORT_NAME: u16 = 7;
}

impl Console {
    /// A device with these ports.
    ///
    /// # Errors
    /// When the host is out of descriptors.
    pub fn new(ports: Vec<Port>) -> io::Result<Self> {
        let count = 2 * (ports.len() + 1);
        let queues = (0..count).map(|_| Virtqueue::new()).collect::<io::Result<_>>()?;
        let mut config = [0; 12];
        let number = (ports.len() as u32).to_le_bytes();
        config.iter_mut().skip(4).zip(number).for_each(|(to, from)| *to = from);
        Ok(Self { queues, ports, open: Arc::default(), config })
    }

    /// Starts its threads, [confined](crate::confine) or not, which end with its queues.
    ///
    /// # Errors
    /// When the host is out of threads or descriptors.
    pub fn start(&self, confine: bool) -> io::Result<()> {
        let mut pairs = self.queues.chunks_exact(2).map(|pair| (pair.first().cloned(), pair.last().cloned()));
        for (n, port) in self.ports.iter().enumerate() {
            let (Some((Some(input), Some(output))), control) = (pairs.next(), (n == 0).then(|| pairs.next()))
            else {
                break;
            };
            if let Some(Some((Some(input), Some(output)))) = control {
                let names = self.ports.iter().map(|port| port.name.clone()).collect();
                let open = self.open.clone();
                spawn("control", confine, move || serve_control(&input, &output, &open, names))?;
            }
            let (reader, writer) = (port.socket.try_clone()?, port.socket.try_clone()?);
            let open = self.open.clone();
            spawn("input", confine, move || receive(reader, &input, || open.wait(n as u32)))?;
            spawn("output", confine, move || send(writer, &output))?;
        }
        Ok(())
    }

    /// Lets no thread wait for a socket's other end.
    pub fn end(&self) {
        self.open.end();
        for port in &self.ports {
            // It may have been closed there.
            let _ = port.socket.shutdown(Shutdown::Both);
        }
    }
}

/// Carries what comes in to the guest.
fn receive(mut socket: UnixStream, queue: &Virtqueue, is_open: impl Fn() -> bool) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count) = socket.read(&mut buffer) {
        let mut bytes = buffer.get(..count).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        while !bytes.is_empty() {
            let Some(request) = queue.take(0).filter(|_| is_open()) else { return };
            let (now, later) = bytes.split_at(request.room().min(bytes.len()));
            queue.put(request, &[now]);
            bytes = later;
        }
    }
}

/// Carries what the guest sends out.
fn send(mut socket: UnixStream, queue: &Virtqueue) {
    while let Some(request) = queue.take(CHUNK) {
        // Nobody reads any more: what comes later goes nowhere, as on a line that is not connected.
        let _ = socket.write_all(&request.bytes);
        queue.put(request, &[]);
    }
}

/// Says which ports there are, and that they are open.
fn serve_control(input: &Virtqueue, output: &Virtqueue, open: &Open, names: Vec<String>) {
    let say = |port: u32, event: u16, value: u16, name: &[u8]| -> Option<()> {
        let request: Request = input.take(0)?;
        let [port, rest] = [port, u32::from(event) | u32::from(value) << 16].map(u32::to_le_bytes);
        input.put(request, &[&port, &rest, name]);
        Some(())
    };
    while let Some(request) = output.take(8) {
        let message: Option<[u8; 8]> = request.bytes.as_slice().try_into().ok();
        output.put(request, &[]);
        let Some([a, b, c, d, event_low, event_high, value, _]) = message else { continue };
        let port = u32::from_le_bytes([a, b, c, d]);
        let answered = match (u16::from_le_bytes([event_low, event_high]), names.get(port as usize)) {
            (event::DEVICE_READY, _) if value == 1 => {
                (0..names.len() as u32).try_for_each(|port| say(port, event::PORT_ADD, 1, &[]))
            }
            (event::PORT_READY, Some(name)) if value == 1 => say(port, event::PORT_NAME, 1, name.as_bytes())
                .and_then(|()| say(port, event::PORT_OPEN, 1, &[])),
            (event::PORT_OPEN, Some(_)) => {
                open.set(port, value == 1);
                Some(())
            }
            _ => Some(()),
        };
        if answered.is_none() {
            return;
        }
    }
}

impl Virtio for Console {
    fn kind(&self) -> u16 {
        3
    }

    fn features(&self) -> u64 {
        MULTIPORT
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn queues(&self) -> &[Arc<Virtqueue>] {
        &self.queues
    }
}
