//! What lives as long as the backend: weights, per-slot states, key/value pages; and the arena of a lane.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use device::program::Snake;
use device::{Catalog, PagedSpec, StateSpec, WeightId};

use crate::pack::Packed;

/// Words of one cache line.
pub(crate) const LINE: usize = 16;

/// A weight in the layout its form asks for.
#[derive(Debug)]
pub(crate) enum Weight {
    /// Matrices and convolutions.
    Packed(Packed),
    /// Tables and vectors as they are; depthwise kernels as `[kernel, channels]`; transposed convolutions
    /// as they are, packed once their stride is known.
    Raw(Vec<f32>),
}

/// Words (of `f32` or `i32`) that several lanes write at disjoint places.
///
/// Disjointness is kept by [`crate::CpuBackend::launch`], which refuses a launch that names a slot or a page
/// pool another lane's launch holds, and inside a launch by the split of rows over threads.
#[derive(Debug)]
pub(crate) struct Shared(Box<[UnsafeCell<u32>]>);

// SAFETY: see the type: concurrent accesses are to disjoint words.
unsafe impl Sync for Shared {}

impl Shared {
    fn zeroed(words: usize) -> Self {
        let words: Box<[u32]> = vec![0u32; words].into_boxed_slice();
        // SAFETY: UnsafeCell<u32> has the layout of u32.
        Self(unsafe { Box::from_raw(Box::into_raw(words) as *mut [UnsafeCell<u32>]) })
    }

    fn at(&self, words: std::ops::Range<usize>) -> *mut u32 {
        self.0[words].as_ptr().cast_mut().cast()
    }
}

/// One state: `[slots + 1, width]`.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) spec: StateSpec,
    rows: usize,
    data: Shared,
}

impl State {
    pub(crate) fn new(spec: StateSpec, rows: usize) -> Self {
        let data = Shared::zeroed(rows * spec.width);
        Self { spec, rows, data }
    }

    /// First word of a slot's row. Panics outside the table.
    pub(crate) fn row(&self, slot: i32) -> *mut u32 {
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        assert!(slot < self.rows, "slot {slot} is outside state {} ({} rows)", self.spec.name, self.rows);
        self.data.at(slot * self.spec.width..(slot + 1) * self.spec.width)
    }

    pub(crate) fn bytes(&self) -> usize {
        4 * self.rows * self.spec.width
    }
}

/// A pool of pages: `[pages][layer][keys, values][page_len][kv_heads * head_dim]`.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) spec: PagedSpec,
    data: Shared,
}

impl Pages {
    pub(crate) fn new(spec: PagedSpec) -> Self {
        let page = 2 * spec.layers * spec.page_len * spec.kv_heads * spec.head_dim;
        let data = Shared::zeroed(spec.pages * page);
        Self { spec, data }
    }

    /// Keys and values of one layer of a page. Panics outside the pool.
    pub(crate) fn layer(&self, page: i32, layer: usize) -> (*mut f32, *mut f32) {
        let page = usize::try_from(page).unwrap_or(usize::MAX);
        assert!(
            page < self.spec.pages,
            "page {page} is outside pool {} ({})",
            self.spec.name,
            self.spec.pages
        );
        let half = self.spec.page_len * self.spec.kv_heads * self.spec.head_dim;
        let first = (page * self.spec.layers + layer) * 2 * half;
        let keys = self.data.at(first..first + 2 * half).cast::<f32>();
        // SAFETY: the range holds both halves.
        (keys, unsafe { keys.add(half) })
    }

    pub(crate) fn bytes(&self) -> usize {
        let spec = &self.spec;
        8 * spec.pages * spec.layers * spec.page_len * spec.kv_heads * spec.head_dim
    }
}

/// `exp(alpha)` and `1 / (exp(beta) + 1e-9)` per channel.
#[derive(Debug)]
pub(crate) struct SnakeTable {
    pub(crate) alpha: Vec<f32>,
    pub(crate) inverse: Vec<f32>,
}

/// Cosines and sines of a discrete Fourier transform, `[n/2 + 1, n]` each.
#[derive(Debug)]
pub(crate) struct Fourier {
    pub(crate) cosines: Packed,
    pub(crate) sines: Packed,
}

/// All of it. Grows only while programs are built; launches share snapshots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) catalog: Catalog,
    pub(crate) weights: Vec<Arc<Weight>>,
    pub(crate) states: Vec<Arc<State>>,
    pub(crate) pages: Vec<Arc<Pages>>,
    /// Forms derived from weights on first use.
    pub(crate) snakes: BTreeMap<(WeightId, WeightId), Arc<SnakeTable>>,
    pub(crate) transposed: BTreeMap<(WeightId, usize), Arc<Packed>>,
    /// Biases written out once for each phase of a transposed convolution.
    pub(crate) repeated: BTreeMap<(WeightId, usize), Arc<Vec<f32>>>,
    pub(crate) fourier: BTreeMap<usize, Arc<Fourier>>,
}

impl Memory {
    /// The raw values of a vector, table or depthwise kernel.
    pub(crate) fn raw(&self, id: WeightId) -> &[f32] {
        match &*self.weights[id.0 as usize] {
            Weight::Raw(data) => data,
            Weight::Packed(_) => unreachable!("programs are checked for weight forms"),
        }
    }

    pub(crate) fn packed(&self, id: WeightId) -> &Packed {
        match &*self.weights[id.0 as usize] {
            Weight::Packed(packed) => packed,
            Weight::Raw(_) => unreachable!("programs are checked for weight forms"),
        }
    }

    pub(crate) fn snake(&self, snake: &Snake) -> &SnakeTable {
        &self.snakes[&(snake.alpha, snake.beta)]
    }

    pub(crate) fn derive_snake(&mut self, snake: &Snake) {
        let key = (snake.alpha, snake.beta);
        if self.snakes.contains_key(&key) {
            return;
        }
        let alpha = self.raw(snake.alpha).iter().map(|&a| a.exp()).collect();
        let inverse = self.raw(snake.beta).iter().map(|&b| 1.0 / (b.exp() + 1e-9)).collect();
        self.snakes.insert(key, Arc::new(SnakeTable { alpha, inverse }));
    }

    pub(crate) fn derive_transposed(&mut self, id: WeightId, stride: usize) {
        let Some(info) = self.catalog.weight(id) else { return };
        if let [inputs, outputs, kernel] = info.shape[..]
            && !self.transposed.contains_key(&(id, stride))
        {
            let packed = Packed::transposed(self.raw(id), inputs, outputs, kernel, stride);
            self.transposed.insert((id, stride), Arc::new(packed));
        }
    }

    pub(crate) fn derive_repeated(&mut self, id: WeightId, times: usize) {
        if !self.repeated.contains_key(&(id, times)) {
            let repeated = self.raw(id).repeat(times);
            self.repeated.insert((id, times), Arc::new(repeated));
        }
    }

    pub(crate) fn derive_fourier(&mut self, points: usize) {
        let wave = |f: fn(f64) -> f64| {
            Packed::new(points / 2 + 1, 1, points, |k, _, n| {
                f(std::f64::consts::TAU * ((k * n) % points) as f64 / points as f64) as f32
            })
        };
        self.fourier
            .entry(points)
            .or_insert_with(|| Arc::new(Fourier { cosines: wave(f64::cos), sines: wave(f64::sin) }));
    }

    /// How many derived forms there are.
    pub(crate) fn derived(&self) -> usize {
        self.snakes.len() + self.transposed.len() + self.repeated.len() + self.fourier.len()
    }

    /// Bytes of states and pages, and of weights with what was derived from them.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let states = self.states.iter().map(|s| s.bytes()).sum::<usize>();
        let pages = self.pages.iter().map(|p| p.bytes()).sum::<usize>();
        let weights = self
            .weights
            .iter()
            .map(|weight| match &**weight {
                Weight::Packed(packed) => packed.bytes(),
                Weight::Raw(data) => 4 * data.len(),
            })
            .sum::<usize>();
        let derived = self.transposed.values().map(|packed| packed.bytes()).sum::<usize>()
            + self.fourier.values().map(|f| f.cosines.bytes() + f.sines.bytes()).sum::<usize>();
        (states + pages, weights + derived)
    }
}

/// The scratch memory of one lane, aligned to cache lines.
#[derive(Debug, Default)]
pub(crate) struct Arena(Vec<Line>);

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

impl Arena {
    /// Room for `words`, zeroed when it has to grow.
    pub(crate) fn reserve(&mut self, words: usize) {
        let lines = words.div_ceil(LINE);
        if lines > self.0.len() {
            self.0 = Vec::new();
            self.0 = vec![Line([0.0; LINE]); lines];
        }
    }

    /// Fills everything with NaN, so that a value read before it is written shows.
    pub(crate) fn poison(&mut self) {
        self.0.fill(Line([f32::NAN; LINE]));
    }

    pub(crate) fn start(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}
