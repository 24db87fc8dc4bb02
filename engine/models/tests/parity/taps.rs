//! Looking inside a program: cut it after the write of one value and hand that value back.

use device::program::Role;
use device::{Op, Program};

/// `program` cut after the `nth` (from 0) full write of the value `name`, which becomes its output.
pub(crate) fn tap(mut program: Program, name: &str, nth: usize) -> Program {
    let writes: Vec<(usize, device::ValueId)> = program
        .ops
        .iter()
        .enumerate()
        .flat_map(|(index, op)| op.operands().into_iter().map(move |operand| (index, operand)))
        .filter(|(_, operand)| matches!(operand.role, Role::Write | Role::Update | Role::WriteColumns))
        .filter(|(_, operand)| program.value(operand.value).name == name)
        .map(|(index, operand)| (index, operand.value))
        .collect();
    let &(op, value) = writes.get(nth).unwrap_or_else(|| {
        panic!("{} writes {name} {} times, write {nth} was asked for", program.name, writes.len())
    });
    program.ops.truncate(op + 1);
    program.outputs = vec![value];
    program
}

/// Ops that write the value `name`.
pub(crate) fn writes(program: &Program, name: &str) -> usize {
    let written = |op: &Op| {
        op.operands()
            .iter()
            .any(|operand| operand.role != Role::Read && program.value(operand.value).name == name)
    };
    program.ops.iter().filter(|op| written(op)).count()
}
