//! [`device::Backend`] on a CUDA device: lanes on SM partitions, a graph per shape, kernels of our own
//! (DESIGN.md section 4).
//!
//! Programs are lowered to kernel launches as data ([`lower`]), which is pure and tested without a device;
//! [`CudaBackend`] records them as graphs and launches those.

mod backend;
mod blas;
pub mod compile;
mod driver;
mod exchange;
mod executable;
mod idle;
mod kernels;
mod launcher;
mod lower;
mod porter;
mod store;

pub use backend::{Clock, CudaBackend, CudaOptions, Notify};
pub use idle::IdleBackend;
pub use lower::Precision;

/// Whether an NVIDIA driver can be loaded on this machine.
#[must_use]
pub fn is_present() -> bool {
    driver::is_present()
}
