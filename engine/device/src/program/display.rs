//! Prints a program, one line an op, for snapshots and for people.

use std::fmt;

use super::{Program, Role, Rows, ValueId};

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerRow(1) => write!(f, "B"),
            Self::PerRow(n) => write!(f, "{n}B"),
            Self::Tokens => write!(f, "N"),
            Self::Fixed(n) => write!(f, "{n}"),
        }
    }
}

impl fmt::Display for Program {
    /// `name(inputs) -> outputs`, then `results = op(operands)` with shapes where a value first appears.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = vec![false; self.values.len()];
        let mut label = |id: ValueId| {
            let Some(value) = self.values.get(id.0 as usize) else { return format!("%{}?", id.0) };
            let first = !std::mem::replace(&mut shown[id.0 as usize], true);
            let name = format!("%{}.{}", id.0, value.name);
            if first { format!("{name}:{:?}[{}, {}]", value.dtype, value.rows, value.cols) } else { name }
        };
        let inputs: Vec<String> = self.inputs.iter().map(|&id| label(id)).collect();
        writeln!(f, "{}({})", self.name, inputs.join(", "))?;
        for op in &self.ops {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for operand in op.operands() {
                let text = label(operand.value);
                match operand.role {
                    Role::Read => reads.push(format!("{}={text}", operand.field)),
                    Role::Scratch => reads.push(format!("{}=~{text}", operand.field)),
                    Role::Update => writes.push(format!("{text} +")),
                    Role::Write => writes.push(text),
                    Role::WriteColumns => writes.push(format!("{text}[..]")),
                }
            }
            let left = if writes.is_empty() { String::new() } else { format!("{} = ", writes.join(", ")) };
            let detail = op.detail();
            let gap = if detail.is_empty() || reads.is_empty() { "" } else { "; " };
            writeln!(f, "  {left}{}({}{gap}{detail})", op.name(), reads.join(", "))?;
        }
        let outputs: Vec<String> = self.outputs.iter().map(|&id| label(id)).collect();
        writeln!(f, "  -> {}", outputs.join(", "))
    }
}
