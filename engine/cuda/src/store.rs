//! What lives as long as the backend: weights in the forms kernels read, states, pages.

use std::collections::BTreeMap;

use device::{Catalog, DeviceError, PagedId, PagedSpec, StateId, StateSpec, WeightForm, WeightId};

use crate::driver::{Driver, Stream};
use crate::kernels::Kernels;
use crate::launcher::launch_step;
use crate::lower::{Arg, Derived, Field, Place, Ready, Shape, Step, Target, lower};

const SLOTS_REMEDY: &str = "lower engine.contexts_max";

pub(crate) struct Store {
    pub(crate) catalog: Catalog,
    /// Uploaded f32 values; `None` once only other forms are in use.
    plain: Vec<Option<u64>>,
    derived: BTreeMap<Derived, u64>,
    states: Vec<u64>,
    pages: Vec<u64>,
    /// Rows of every state.
    rows: usize,
    /// What is said to help where weights do not fit.
    weights_remedy: &'static str,
    pub(crate) bytes: usize,
}

/// Device, kernels and the stream on which weights are brought into form.
pub(crate) struct Workshop<'a> {
    pub(crate) driver: &'a mut Driver,
    pub(crate) kernels: &'a mut Kernels,
    pub(crate) stream: Stream,
    /// What is made for.
    pub(crate) target: Target,
}

impl Store {
    pub(crate) fn new(rows: usize, weights_remedy: &'static str) -> Self {
        Self {
            catalog: Catalog::default(),
            plain: Vec::new(),
            derived: BTreeMap::new(),
            states: Vec::new(),
            pages: Vec::new(),
            rows,
            weights_remedy,
            bytes: 0,
        }
    }

    pub(crate) fn upload(
        &mut self,
        driver: &mut Driver,
        name: &str,
        form: WeightForm,
        shape: &[usize],
        data: &[f32],
    ) -> Result<WeightId, DeviceError> {
        let id = self.catalog.add_weight(name, form, shape, data.len())?;
        let at = driver.take(4 * data.len(), name, self.weights_remedy)?;
        driver.write(at, data)?;
        self.bytes += 4 * data.len();
        self.plain.push(Some(at));
        Ok(id)
    }

    pub(crate) fn state(&mut self, driver: &mut Driver, spec: StateSpec) -> Result<StateId, DeviceError> {
        let bytes = 4 * self.rows * spec.width;
        let id = self.catalog.add_state(spec.clone())?;
        self.states.push(driver.take(bytes, &spec.name, SLOTS_REMEDY)?);
        self.bytes += bytes;
        Ok(id)
    }

    /// `value_bytes` is 2 or 4.
    pub(crate) fn paged(
        &mut self,
        driver: &mut Driver,
        spec: PagedSpec,
        value_bytes: usize,
    ) -> Result<PagedId, DeviceError> {
        let page = 2 * spec.layers * spec.page_len * spec.kv_heads * spec.head_dim;
        let bytes = value_bytes * spec.pages * page;
        let id = self.catalog.add_paged(spec.clone())?;
        self.pages.push(driver.take(bytes, &format!("key/value pages of {}", spec.name), SLOTS_REMEDY)?);
        self.bytes += bytes;
        Ok(id)
    }

    pub(crate) fn state_row(&self, state: StateId, slot: u32) -> Option<(u64, &StateSpec)> {
        let spec = self.catalog.state(state)?;
        if slot as usize >= self.rows {
            return None;
        }
        Some((self.states[state.0 as usize] + 4 * (slot as usize * spec.width) as u64, spec))
    }

    pub(crate) fn state_at(&self, state: StateId) -> u64 {
        self.states[state.0 as usize]
    }

    pub(crate) fn pages_at(&self, pages: PagedId) -> u64 {
        self.pages[pages.0 as usize]
    }

    /// Where a derived form lies. [`Store::derive`] has made it.
    pub(crate) fn weight_at(&self, derived: &Derived) -> u64 {
        match derived {
            Derived::Plain { id, bf16: false } if self.plain[id.0 as usize].is_some() => {
                self.plain[id.0 as usize].unwrap_or(0)
            }
            _ => self.derived.get(derived).copied().unwrap_or(0),
        }
    }

    /// Makes every form `steps` read that is not there yet.
    pub(crate) fn derive(&mut self, shop: &mut Workshop<'_>, steps: &[Step]) -> Result<(), DeviceError> {
        for step in steps {
            for place in step.places() {
                if let Place::Weight(derived) = place
                    && self.weight_at(derived) == 0
                {
                    let at = self.make(shop, derived)?;
                    self.derived.insert(derived.clone(), at);
                }
            }
        }
        shop.driver.synchronize()
    }

    /// Gives back the f32 values of weights that only exist for products in bf16 from now on.
    pub(crate) fn release_plain(&mut self, driver: &mut Driver) {
        let wide: Vec<WeightId> = self
            .derived
            .keys()
            .flat_map(|derived| match derived {
                &(Derived::Plain { id, bf16: true }
                | Derived::Conv { id, bf16: true }
                | Derived::Transposed { id, bf16: true, .. }) => vec![id],
                Derived::Stacked { ids } => ids.clone(),
                &Derived::Scaled { id, .. } => vec![id],
                _ => Vec::new(),
            })
            .collect();
        for id in wide {
            if let Some(at) = self.plain[id.0 as usize].take() {
                driver.give(at);
                let count: usize = self.catalog.weight(id).map_or(0, |info| info.shape.iter().product());
                self.bytes -= 4 * count;
            }
        }
    }

    fn shape(&self, id: WeightId) -> Vec<usize> {
        self.catalog.weight(id).map(|info| info.shape.clone()).unwrap_or_default()
    }

    /// The uploaded values.
    fn f32_of(&self, id: WeightId) -> Result<u64, DeviceError> {
        self.plain[id.0 as usize].ok_or_else(|| DeviceError::BadTensor {
            name: self.catalog.weight(id).map(|info| info.name.clone()).unwrap_or_default(),
            what: "is needed in f32 after its f32 values were given back".to_owned(),
        })
    }

    fn take(&mut self, shop: &mut Workshop<'_>, bytes: usize, id: WeightId) -> Result<u64, DeviceError> {
        let name = self.catalog.weight(id).map(|info| info.name.clone()).unwrap_or_default();
        self.bytes += bytes;
        shop.driver.take(bytes, &name, self.weights_remedy)
    }

    fn make(&mut self, shop: &mut Workshop<'_>, derived: &Derived) -> Result<u64, DeviceError> {
        match *derived {
            Derived::Plain { id, bf16 } => {
                let from = self.f32_of(id)?;
                if !bf16 {
                    return Ok(from);
                }
                let count: usize = self.shape(id).iter().product();
                self.narrow(shop, id, from, count)
            }
            Derived::Conv { id, bf16 } => {
                let from = self.f32_of(id)?;
                let [out, input, kernel] = self.shape(id)[..] else { return Ok(from) };
                let count = out * input * kernel;
                let args = |to| vec![address(from), address(to), int(out), int(input), int(kernel)];
                self.shaped(shop, id, count, bf16, "conv_weights", args)
            }
            Derived::Transposed { id, stride, bf16 } => {
                let from = self.f32_of(id)?;
                let [input, out, kernel] = self.shape(id)[..] else { return Ok(from) };
                let count = out * input * kernel;
                let args =
                    |to| vec![address(from), address(to), int(input), int(out), int(kernel), int(stride)];
                self.shaped(shop, id, count, bf16, "transposed_weights", args)
            }
            Derived::Depthwise { id } => {
                let from = self.f32_of(id)?;
                let [channels, _, kernel] = self.shape(id)[..] else { return Ok(from) };
                let args = |to| vec![address(from), address(to), int(channels), int(kernel)];
                self.shaped(shop, id, channels * kernel, false, "depthwise_weights", args)
            }
            Derived::Repeated { id, times } => {
                let from = self.f32_of(id)?;
                let count = self.shape(id)[0];
                let args = |to| vec![address(from), address(to), int(count), int(times)];
                self.shaped(shop, id, count * times, false, "repeat_vector", args)
            }
            Derived::SnakeAlpha { alpha, beta } | Derived::SnakeInverse { alpha, beta } => {
                let (a, b) = (self.f32_of(alpha)?, self.f32_of(beta)?);
                let count = self.shape(alpha)[0];
                let (first, second) =
                    (self.take(shop, 4 * count, alpha)?, self.take(shop, 4 * count, alpha)?);
                let args = vec![address(a), address(b), address(first), address(second), int(count)];
                each(shop, "snake_tables", count, args)?;
                self.derived.insert(Derived::SnakeAlpha { alpha, beta }, first);
                self.derived.insert(Derived::SnakeInverse { alpha, beta }, second);
                Ok(if matches!(derived, Derived::SnakeAlpha { .. }) { first } else { second })
            }
            Derived::Stacked { ref ids } => {
                let counts: Vec<usize> = ids.iter().map(|id| self.shape(*id).iter().product()).collect();
                let at = self.take(shop, 2 * counts.iter().sum::<usize>(), ids[0])?;
                let mut to = at;
                for (&id, count) in ids.iter().zip(counts) {
                    let from = self.f32_of(id)?;
                    each(shop, "to_bf16", count, vec![address(from), address(to), long(count)])?;
                    to += 2 * count as u64;
                }
                Ok(at)
            }
            Derived::Scaled { id, scale } => {
                let (from, by) = (self.f32_of(id)?, self.f32_of(scale)?);
                let [rows, cols] = self.shape(id)[..] else { return Ok(from) };
                // Each row's factor is one column, the same for all its values.
                let n = rows * cols;
                let args = |to| vec![address(from), address(by), address(to), int(1), int(cols), long(n)];
                self.shaped(shop, id, n, true, "multiply", args)
            }
            Derived::Ready(ref ready) => self.make_ready(shop, ready),
            Derived::Tables { ref ids, bf16 } => {
                let mut list = Vec::new();
                for &id in ids {
                    let one = Derived::Plain { id, bf16 };
                    if self.weight_at(&one) == 0 {
                        let at = self.make(shop, &one)?;
                        self.derived.insert(one.clone(), at);
                    }
                    list.push(self.weight_at(&one));
                }
                let at = shop.driver.take(8 * list.len(), "tables", self.weights_remedy)?;
                shop.driver.synchronize()?;
                shop.driver.write(at, &list)?;
                Ok(at)
            }
            Derived::Frequencies { theta, dim } => {
                let theta = f32::from_bits(theta);
                let list: Vec<f32> =
                    (0..dim / 2).map(|i| 1.0 / theta.powf((2 * i) as f32 / dim as f32)).collect();
                let at = shop.driver.take(4 * list.len(), "frequencies", self.weights_remedy)?;
                shop.driver.write(at, &list)?;
                Ok(at)
            }
        }
    }

    /// Runs the ops that a table's rows stand for, on all its ids.
    fn make_ready(&mut self, shop: &mut Workshop<'_>, ready: &Ready) -> Result<u64, DeviceError> {
        let batch = self.shape(ready.table)[0];
        let program = ready.program(&self.catalog);
        // The library's memory is not there yet.
        let target = Target { library_from: None, ..shop.target };
        let lowered = lower(&program, &self.catalog, Shape { batch, tokens: 0 }, target);
        self.derive(shop, &lowered.steps)?;
        let mut room = |bytes| shop.driver.take(bytes, "rows of a table", self.weights_remedy);
        let (arena, counters, ids) = (room(lowered.bytes)?, room(4 * lowered.counters)?, room(4 * batch)?);
        shop.driver.write(ids, &(0..i32::try_from(batch).unwrap_or(i32::MAX)).collect::<Vec<_>>())?;
        let mut resolve = |place: &Place| match place {
            Place::Value(id) => lowered.values[id.0 as usize].map_or(ids, |offset| arena + offset as u64),
            Place::Temp(temp) => arena + lowered.temps[*temp] as u64,
            Place::Weight(derived) => self.weight_at(derived),
            Place::Counters => counters,
            Place::Null | Place::State(_) | Place::Pages(_) | Place::Workspace => 0,
        };
        for step in &lowered.steps {
            launch_step(shop.driver, shop.kernels, shop.stream, step, &mut resolve)?;
        }
        let made = resolve(&Place::Value(program.outputs[0]));
        let count = batch * program.value(program.outputs[0]).cols;
        let at = if ready.bf16 {
            self.narrow(shop, ready.table, made, count)?
        } else {
            let at = self.take(shop, 4 * count, ready.table)?;
            let whole =
                [address(made), int(count), int(0), address(at), int(count), int(0), long(1), int(count)];
            each(shop, "copy_ff", count, whole.into())?;
            at
        };
        shop.driver.synchronize()?;
        [arena, counters, ids].into_iter().for_each(|at| shop.driver.give(at));
        Ok(at)
    }

    /// Runs a kernel that writes `count` f32 values, and narrows them when asked.
    fn shaped(
        &mut self,
        shop: &mut Workshop<'_>,
        id: WeightId,
        count: usize,
        bf16: bool,
        kernel: &'static str,
        args: impl FnOnce(u64) -> Vec<Arg>,
    ) -> Result<u64, DeviceError> {
        let to = self.take(shop, 4 * count, id)?;
        each(shop, kernel, count, args(to))?;
        if !bf16 {
            return Ok(to);
        }
        let half = self.narrow(shop, id, to, count)?;
        shop.driver.synchronize()?;
        shop.driver.give(to);
        self.bytes -= 4 * count;
        Ok(half)
    }

    fn narrow(
        &mut self,
        shop: &mut Workshop<'_>,
        id: WeightId,
        from: u64,
        count: usize,
    ) -> Result<u64, DeviceError> {
        let half = self.take(shop, 2 * count, id)?;
        each(shop, "to_bf16", count, vec![address(from), address(half), long(count)])?;
        Ok(half)
    }
}

/// Runs an elementwise kernel over `n` values now.
fn each(shop: &mut Workshop<'_>, kernel: &'static str, n: usize, args: Vec<Arg>) -> Result<(), DeviceError> {
    let blocks = u32::try_from(n.div_ceil(256).clamp(1, 8192)).unwrap_or(1);
    let (kernel, grid) = (kernel.into(), [blocks, 1, 1]);
    let step = Step { library: None, kernel, grid, block: 256, shared: 0, cluster: 1, args };
    launch_step(shop.driver, shop.kernels, shop.stream, &step, &mut |_| 0)
}

fn address(at: u64) -> Arg {
    Arg::One(Field::I64(at.cast_signed()))
}

fn int(value: usize) -> Arg {
    Arg::One(Field::I32(i32::try_from(value).unwrap_or(i32::MAX)))
}

fn long(value: usize) -> Arg {
    Arg::One(Field::I64(i64::try_from(value).unwrap_or(i64::MAX)))
}
