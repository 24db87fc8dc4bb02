//! Each op written in the plainest way, in `f64`.

use device::program::{Activation, Op, Program, Rows, Snake};
use device::sampling::{Draw, SampleParams, Sampler};
use device::{HostTensor, PagedSpec, ValueId, WeightId};

/// Values, states and weights as `f64`, integers included.
#[derive(Default)]
pub struct Reference {
    pub weights: Vec<(Vec<usize>, Vec<f64>)>,
    pub states: Vec<(usize, Vec<f64>)>,
    pub pages: Vec<Pool>,
    pub values: Vec<Table>,
    pub batch: usize,
}

/// Keys and values by page, layer and position.
pub struct Pool {
    pub page_len: usize,
    layers: usize,
    rows: Vec<(Vec<f64>, Vec<f64>)>,
}

#[derive(Clone, Default)]
pub struct Table {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<f64>,
}

impl Table {
    pub fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.data[row * self.cols..(row + 1) * self.cols]
    }

    pub fn int(&self, row: usize) -> i64 {
        self.data[row * self.cols] as i64
    }
}

impl Pool {
    pub fn new(spec: &PagedSpec) -> Self {
        let rows = vec![(Vec::new(), Vec::new()); spec.pages * spec.layers * spec.page_len];
        Self { page_len: spec.page_len, layers: spec.layers, rows }
    }

    pub fn at(&mut self, page: i64, layer: usize, place: usize) -> &mut (Vec<f64>, Vec<f64>) {
        &mut self.rows[(page as usize * self.layers + layer) * self.page_len + place]
    }
}

impl Reference {
    /// Runs a program and returns its outputs.
    pub fn run(
        &mut self,
        program: &Program,
        batch: usize,
        tokens: usize,
        inputs: &[HostTensor],
    ) -> Vec<Vec<f64>> {
        self.batch = batch;
        self.values = program
            .values
            .iter()
            .map(|value| {
                let rows = match value.rows {
                    Rows::PerRow(n) => n * batch,
                    Rows::Tokens => tokens,
                    Rows::Fixed(n) => n,
                };
                Table { rows, cols: value.cols, data: vec![f64::NAN; rows * value.cols] }
            })
            .collect();
        for (&id, input) in program.inputs.iter().zip(inputs) {
            self.values[id.0 as usize].data = match input {
                HostTensor::F32(data) => data.iter().map(|&x| f64::from(x)).collect(),
                HostTensor::I32(data) => data.iter().map(|&x| f64::from(x)).collect(),
            };
        }
        for op in &program.ops {
            if !self.convolve(op) {
                self.op(op);
            }
        }
        program.outputs.iter().map(|&id| self.values[id.0 as usize].data.clone()).collect()
    }

    pub fn get(&self, id: ValueId) -> Table {
        self.values[id.0 as usize].clone()
    }

    pub fn set(&mut self, id: ValueId, table: Table) {
        assert_eq!(table.data.len(), self.values[id.0 as usize].data.len());
        self.values[id.0 as usize] = table;
    }

    pub fn weight(&self, id: WeightId) -> &[f64] {
        &self.weights[id.0 as usize].1
    }

    pub fn snake(&self, snake: &Snake, column: usize, x: f64) -> f64 {
        let (a, b) = (self.weight(snake.alpha)[column].exp(), self.weight(snake.beta)[column].exp());
        x + (x * a).sin().powi(2) / (b + 1e-9)
    }

    pub fn linear(&self, input: &Table, weight: WeightId, bias: Option<WeightId>) -> Table {
        let outputs = self.weights[weight.0 as usize].0[0];
        let weight = self.weight(weight);
        let mut out = Table { rows: input.rows, cols: outputs, data: Vec::new() };
        for row in 0..input.rows {
            for o in 0..outputs {
                let products = input.row(row).iter().zip(&weight[o * input.cols..]).map(|(x, w)| x * w);
                out.data.push(products.sum::<f64>() + bias.map_or(0.0, |bias| self.weight(bias)[o]));
            }
        }
        out
    }

    fn op(&mut self, op: &Op) {
        match *op {
            Op::Embed { table, ids, out, accumulate } => {
                self.embed(&[table], ids, out, accumulate);
            }
            Op::EmbedSum { ref tables, codes, out, accumulate } => self.embed(tables, codes, out, accumulate),
            Op::GatherRows { source, rows, out, accumulate } => {
                let (source, rows, mut target) = (self.get(source), self.get(rows), self.get(out));
                for row in 0..target.rows {
                    let from = rows.int(row);
                    for column in 0..target.cols {
                        let x = if from < 0 { 0.0 } else { source.row(from as usize)[column] };
                        let y = &mut target.row_mut(row)[column];
                        *y = if accumulate { *y + x } else { x };
                    }
                }
                self.set(out, target);
            }
            Op::Slice { source, first, out } => {
                let (source, mut target) = (self.get(source), self.get(out));
                for row in 0..target.rows {
                    let width = target.cols;
                    target.row_mut(row).copy_from_slice(&source.row(row)[first..first + width]);
                }
                self.set(out, target);
            }
            Op::Place { source, out, first } => {
                let (source, mut target) = (self.get(source), self.get(out));
                for row in 0..target.rows {
                    target.row_mut(row)[first..first + source.cols].copy_from_slice(source.row(row));
                }
                self.set(out, target);
            }
            Op::Reshape { source, out } => self.values[out.0 as usize].data = self.get(source).data,
            Op::Repeat { source, out } => {
                let (source, mut target) = (self.get(source), self.get(out));
                let times = target.rows / source.rows;
                for row in 0..target.rows {
                    target.row_mut(row).copy_from_slice(source.row(row / times));
                }
                self.set(out, target);
            }
            Op::LoadState { state, slots, out } => {
                let (slots, mut target) = (self.get(slots), self.get(out));
                for row in 0..target.rows {
                    let (width, data) = &self.states[state.0 as usize];
                    let first = slots.int(row) as usize * width;
                    target.row_mut(row).copy_from_slice(&data[first..first + width]);
                }
                self.set(out, target);
            }
            Op::StoreState { state, slots, source, active } => {
                let (slots, source) = (self.get(slots), self.get(source));
                let active = active.map(|id| self.get(id));
                for row in 0..source.rows {
                    if active.as_ref().is_none_or(|active| active.int(row) != 0) {
                        let (width, data) = &mut self.states[state.0 as usize];
                        let first = slots.int(row) as usize * *width;
                        data[first..first + *width].copy_from_slice(source.row(row));
                    }
                }
            }
            Op::Equals { ids, id, flags } => {
                let ids = self.get(ids);
                let data = (0..ids.rows).map(|row| f64::from(ids.int(row) == i64::from(id))).collect();
                self.set(flags, Table { rows: ids.rows, cols: 1, data });
            }
            Op::MaskRows { source, valid, frames, out } => {
                let (mut source, valid) = (self.get(source), self.get(valid));
                let steps = source.rows / self.batch;
                for row in 0..source.rows {
                    if row % steps >= valid.int(row / steps) as usize * steps / frames {
                        source.row_mut(row).fill(0.0);
                    }
                }
                self.set(out, source);
            }
            Op::Linear { input, weight, bias, activation, residual, out } => {
                let mut result = self.linear(&self.get(input), weight, bias);
                if let Some(activation) = activation {
                    result.data.iter_mut().for_each(|x| *x = activate(activation, *x));
                }
                if let Some(residual) = residual {
                    result.data.iter_mut().zip(&self.get(residual).data).for_each(|(x, r)| *x += r);
                }
                self.set(out, result);
            }
            Op::GatedMlp { input, gate, up, down, out } => {
                let input = self.get(input);
                let mut gated = self.linear(&input, gate, None);
                let up = self.linear(&input, up, None);
                gated
                    .data
                    .iter_mut()
                    .zip(&up.data)
                    .for_each(|(g, u)| *g = activate(Activation::Silu, *g) * u);
                let result = self.linear(&gated, down, None);
                self.set(out, result);
            }
            Op::RmsNorm { input, weight, eps, out } => {
                let mut table = self.get(input);
                for row in 0..table.rows {
                    rms_norm(table.row_mut(row), self.weight(weight), f64::from(eps));
                }
                self.set(out, table);
            }
            Op::LayerNorm { input, weight, bias, eps, out } => {
                let mut table = self.get(input);
                let count = table.cols as f64;
                for row in 0..table.rows {
                    let values = table.row_mut(row);
                    let mean = values.iter().sum::<f64>() / count;
                    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                    for (column, x) in values.iter_mut().enumerate() {
                        let unit = (*x - mean) / (variance + f64::from(eps)).sqrt();
                        *x = unit * self.weight(weight)[column] + self.weight(bias)[column];
                    }
                }
                self.set(out, table);
            }
            Op::AddScaled { target, input, scale } => {
                let (mut table, input) = (self.get(target), self.get(input));
                for (i, x) in table.data.iter_mut().enumerate() {
                    let scale = scale.map_or(1.0, |scale| self.weight(scale)[i % input.cols]);
                    *x += input.data[i] * scale;
                }
                self.set(target, table);
            }
            Op::Multiply { a, b, out } => {
                let (mut table, b) = (self.get(a), self.get(b));
                for row in 0..table.rows {
                    let from = row * b.rows / table.rows;
                    table.row_mut(row).iter_mut().zip(b.row(from)).for_each(|(x, y)| *x *= y);
                }
                self.set(out, table);
            }
            Op::Activate { input, activation, out } => {
                let mut table = self.get(input);
                table.data.iter_mut().for_each(|x| *x = activate(activation, *x));
                self.set(out, table);
            }
            Op::Clamp { input, low, high, out } => {
                let mut table = self.get(input);
                table.data.iter_mut().for_each(|x| *x = x.clamp(f64::from(low), f64::from(high)));
                self.set(out, table);
            }
            Op::SnakeBeta { input, ref snake, out } => {
                let mut table = self.get(input);
                for i in 0..table.data.len() {
                    table.data[i] = self.snake(snake, i % table.cols, table.data[i]);
                }
                self.set(out, table);
            }
            Op::Sample { .. } => self.sample(op),
            _ => self.attend(op),
        }
    }

    fn embed(&mut self, tables: &[WeightId], codes: ValueId, out: ValueId, accumulate: bool) {
        let (codes, mut target) = (self.get(codes), self.get(out));
        for row in 0..target.rows {
            if !accumulate {
                target.row_mut(row).fill(0.0);
            }
            for (group, &table) in tables.iter().enumerate() {
                let id = codes.row(row)[group];
                if id >= 0.0 {
                    let first = id as usize * target.cols;
                    for (column, x) in target.row_mut(row).iter_mut().enumerate() {
                        *x += self.weight(table)[first + column];
                    }
                }
            }
        }
        self.set(out, target);
    }

    fn sample(&mut self, op: &Op) {
        let Op::Sample {
            logits,
            params,
            seeds,
            step,
            draw,
            ref bound,
            allow_keep,
            history,
            slots,
            out,
            column,
        } = *op
        else {
            return;
        };
        let [logits, params, seeds, step, slots, mut target] =
            [logits, params, seeds, step, slots, out].map(|id| self.get(id));
        let allow_keep = allow_keep.map(|id| self.get(id));
        for row in 0..target.rows {
            let p = params.row(row);
            let mut flags: Option<Vec<i32>> = history.map(|state| {
                let (width, data) = &self.states[state.0 as usize];
                let first = slots.int(row) as usize * width;
                data[first..first + width]
                    .iter()
                    .map(|&x| if step.int(row) == 0 { 0 } else { x as i32 })
                    .collect()
            });
            let low = u64::from(seeds.row(row)[0] as i32 as u32);
            let high = u64::from(seeds.row(row)[1] as i32 as u32);
            let drawn = Sampler::default().draw(
                &logits.row(row).iter().map(|&x| x as f32).collect::<Vec<f32>>(),
                SampleParams::from_row([p[0] as f32, p[1] as f32, p[2] as f32, p[3] as f32]),
                flags.as_deref(),
                bound.as_ref(),
                allow_keep.as_ref().is_none_or(|allow| allow.int(row) != 0),
                Draw { seed: high << 32 | low, step: step.int(row) as u32, draw },
            );
            target.row_mut(row)[column] = f64::from(drawn);
            if let (Some(flags), Some(state)) = (&mut flags, history) {
                flags[drawn as usize] = 1;
                let (width, data) = &mut self.states[state.0 as usize];
                let first = slots.int(row) as usize * *width;
                data[first..first + *width]
                    .iter_mut()
                    .zip(flags)
                    .for_each(|(to, from)| *to = f64::from(*from));
            }
        }
        self.set(out, target);
    }
}

pub fn rms_norm(values: &mut [f64], weight: &[f64], eps: f64) {
    let mean = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
    for (x, w) in values.iter_mut().zip(weight) {
        *x = *x / (mean + eps).sqrt() * w;
    }
}

pub fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Elu => {
            if x > 0.0 {
                x
            } else {
                x.exp_m1()
            }
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Activation::Relu => x.max(0.0),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
    }
}

/// Simpson's rule over the defining integral.
fn erf(x: f64) -> f64 {
    let h = x / 2_000.0;
    let f = |i: i32| (-(f64::from(i) * h).powi(2)).exp();
    let inner: f64 = (1..2_000).map(|i| f(i) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    (f(0) + inner + f(2_000)) * h / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
}
