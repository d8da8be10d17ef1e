"""Writes the transition system as Rust, for the tests that hold the code against it.

Things are numbers: a round is four times its acquisition plus its index, a quorum is a set of bits.
A fence is its rank among those that the state mentions, so that states are equal if they differ
only in the distances between fences.
"""

import re
import subprocess
from textwrap import fill

from z3 import Const

from protocol import ACTIONS, INVARIANTS, RELATIONS, Bool, State
from translate import write

SYMBOLS = State()
MOST = {'Node': 'NODES_MAX', 'Acquisition': 'ACQUISITIONS_MAX', 'Round': 'ROUNDS_MAX'}
COUNT = {'Node': 'sizes.nodes', 'Acquisition': 'sizes.acquisitions',
         'Round': 'sizes.acquisitions * ROUNDS', 'Fence': 's.fences.len()'}

HEAD = '''//! The transition system of `proof/protocol.py`, as `proof/rust.py` writes it: change it there.
//!
//! `cargo test --test proof` fails if the two differ. `protocol.py` and `docs/proof.md` explain the
//! relations, actions and invariants.

// Not every test that includes this uses every action.
#![allow(dead_code)]
// Generated code, not meant to be read.
#![allow(unused_parens, clippy::all)]

/// The largest number of each that fits.
pub(crate) const NODES_MAX: usize = 5;
pub(crate) const ACQUISITIONS_MAX: usize = 6;
/// Rounds of each acquisition.
pub(crate) const ROUNDS: usize = 4;
const ROUNDS_MAX: usize = ACQUISITIONS_MAX * ROUNDS;

/// The number of each, and as bits: which clients never look at their clocks, and which are
/// readers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) nodes: usize,
    pub(crate) acquisitions: usize,
    pub(crate) blind: u32,
    pub(crate) readers: u32,
}

/// One relation: a bit for each place.
type Bits = u128;

fn own(round: usize) -> usize {
    round / ROUNDS
}

fn asks(round: usize) -> bool {
    round % ROUNDS == 0
}

/// The models ask once with each token.
fn no_later(round: usize, other: usize) -> bool {
    round == other && asks(round)
}

fn member(node: usize, quorum: usize) -> bool {
    quorum >> node & 1 != 0
}

/// A set of nodes.
pub(crate) fn those(nodes: usize, has: impl Fn(usize) -> bool) -> usize {
    (0..nodes).filter(|node| has(*node)).fold(0, |set, node| set | 1 << node)
}

/// The proof only requires that two quorums share a node; any two majorities do.
pub(crate) fn is_quorum(nodes: usize, set: usize) -> bool {
    set.count_ones() as usize * 2 > nodes
}

fn below(fence: usize, other: usize) -> bool {
    fence < other
}

impl Sizes {
    fn blind(&self, acquisition: usize) -> bool {
        self.blind >> acquisition & 1 != 0
    }

    fn reader(&self, acquisition: usize) -> bool {
        self.readers >> acquisition & 1 != 0
    }
}
'''

FENCES = '''
impl State {
    /// The rank of a fence, which is inserted among the others if it is new.
    fn rank(&mut self, fence: u64) -> usize {
        match self.fences.binary_search(&fence) {
            Ok(rank) => rank,
            Err(rank) => {
                self.fences.insert(rank, fence);
                self.stored.insert(rank, 0);
                self.renumber(|old| old + usize::from(old >= rank));
                rank
            }
        }
    }

    /// Drops the fences that nothing mentions.
    fn collect(&mut self) {
        let mut used = 0_u64;
        self.renumber(|rank| {
            used |= 1 << rank;
            rank
        });
        for (rank, places) in self.stored.iter().enumerate() {
            used |= u64::from(*places != 0) << rank;
        }
        for rank in (0..self.fences.len()).rev() {
            if used >> rank & 1 == 0 {
                self.fences.remove(rank);
                self.stored.remove(rank);
                self.renumber(|old| old - usize::from(old > rank));
            }
        }
    }
}
'''


def documented(text, indent=0):
    margin = ' ' * indent + '/// '
    return fill(text, 100, initial_indent=margin, subsequent_indent=margin) + '\n'


def camel(name):
    return ''.join(word.capitalize() for word in re.findall('[a-z]+', name))


class Rust:
    def __init__(self, state='s'):
        self.state = state

    def quantifier(self, is_forall, variables, conditions, body):
        names = [name for name, _ in variables]
        text, left = '', list(conditions)
        for index, (name, sort) in enumerate(variables):
            later = names[index + 1:]
            ready = [part for part in left
                     if not any(re.search(rf'\b{other}\b', part) for other in later)]
            left = [part for part in left if part not in ready]
            unless = f'!({" && ".join(ready)}) || ' if ready else ''
            text += f'(0..{COUNT[sort]}).{"all" if is_forall else "any"}(|{name}| {unless}'
        return text + body + ')' * len(variables)

    def both(self, *parts):
        return f'({" && ".join(parts)})'

    def either(self, *parts):
        return f'({" || ".join(parts)})'

    def same(self, left, right):
        return f'({left} == {right})'

    def differ(self, left, right):
        return f'({left} != {right})'

    def no(self, part):
        return f'!{part}'

    def implies(self, left, right):
        return f'(!{left} || {right})'

    def choose(self, condition, yes, no):
        return f'(if {condition} {{ {yes} }} else {{ {no} }})'

    def truth(self, value):
        return str(value).lower()

    def call(self, name, parts):
        text = f'{name}({", ".join(parts)})'
        if name in RELATIONS:
            return f'{self.state}.{text}'
        if name in ('blind', 'reader'):
            return f'sizes.{text}'
        return text if parts else name


def arguments(names, sorts):
    return ', '.join(f'{name}: usize' for name, _ in zip(names, sorts))


def setter(name, names, kinds, value):
    """Makes a relation hold, or gives it a value: for a state that is drawn at random."""
    given = [f'{place}: {"u64" if kind == "Fence" else "usize"}'
             for place, kind in zip(names, kinds)]
    if name == 'stored':
        body = 'let rank = self.rank(x2); self.stored[rank] |= 1 << (x0 * NODES_MAX + x1);'
    elif value == Bool:
        place = names[0] if len(names) == 1 else f'({names[0]} * {MOST[kinds[1]]} + {names[1]})'
        body = f'self.{name} |= 1 << {place};'
    else:
        is_fence = value.name() == 'Fence'
        given.append(f'value: {"u64" if is_fence else "usize"}')
        place = f'self.{name}[x0]' if names else f'self.{name}'
        rank = 'let value = self.rank(value);' if is_fence else ''
        body = f'{rank} {place} = value as u8;'
    return f'pub(crate) fn set_{name}(&mut self, {", ".join(given)}) {{ {body} }}'


def fields():
    """The state's fields, and how they are read and renumbered."""
    lines, readers, renumber, start = [], [], [], []
    for name, (sorts, value, meaning, _) in RELATIONS.items():
        if len(sorts) > 2 and name != 'stored':
            raise NotImplementedError(f'{name}: only `stored` is written with three places')
        names = [f'x{index}' for index in range(len(sorts))]
        kinds = [sort.name() for sort in sorts]
        kind = 'bool' if value == Bool else 'usize'
        if name == 'stored':
            field, start_value = 'Vec<u32>', 'vec![0; 1]'
            body = 'self.stored[x2] >> (x0 * NODES_MAX + x1) & 1 != 0'
        elif value == Bool:
            field, start_value = 'Bits', '0'
            place = names[0] if len(names) == 1 else f'({names[0]} * {MOST[kinds[1]]} + {names[1]})'
            body = f'self.{name} >> {place} & 1 != 0'
        elif not sorts:
            field, start_value, body = 'u8', '0', f'usize::from(self.{name})'
        else:
            field, start_value = f'[u8; {MOST[kinds[0]]}]', f'[0; {MOST[kinds[0]]}]'
            body = f'usize::from(self.{name}[x0])'
        lines.append(f'/// {meaning[0].upper()}{meaning[1:]}.\n{name}: {field},')
        start.append(f'{name}: {start_value},')
        given = f'&self{", " if names else ""}{arguments(names, sorts)}'
        readers.append(f'pub(crate) fn {name}({given}) -> {kind} {{ {body} }}')
        readers.append(setter(name, names, kinds, value))
        if value.name() == 'Fence':
            renumber.append(f'self.{name} = to(usize::from(self.{name})) as u8;' if not sorts else
                            f'for rank in &mut self.{name} {{ '
                            f'*rank = to(usize::from(*rank)) as u8; }}')
    return lines, readers, renumber, start


def write_state():
    lines, readers, renumber, start = fields()
    return (
        '/// What the proof knows of the world.\n'
        '#[derive(Clone, Debug, PartialEq, Eq, Hash)]\n'
        'pub(crate) struct State {\n'
        '/// All fences that the state mentions, in order.\nfences: Vec<u64>,\n'
        + '\n'.join(lines) + '\n}\n\nimpl State {\n'
        '/// Nothing has happened.\npub(crate) fn new() -> State {\nState { fences: vec![0], '
        + ' '.join(start) + '} }\n\n' + '\n\n'.join(readers)
        + '\n\nfn renumber(&mut self, mut to: impl FnMut(usize) -> usize) {\n'
        + '\n'.join(renumber) + '\n}\n\n'
        '/// The fence of a rank.\n'
        'pub(crate) fn fence_of(&self, rank: usize) -> u64 { self.fences[rank] }\n\n'
        '/// How many ranks there are.\n'
        'pub(crate) fn ranks(&self) -> usize { self.fences.len() }\n}\n' + FENCES)


def write_invariants():
    text, names = '', []
    for invariant in INVARIANTS:
        name = re.sub('[^a-z]+', '_', invariant.name)
        names.append(f'("{invariant.name}", {name} as Invariant)')
        text += (f'{documented(invariant.sentence)}fn {name}(s: &State, sizes: &Sizes) -> bool {{\n'
                 f'{write(invariant.holds(SYMBOLS), Rust())}\n}}\n\n')
    head = ('pub(crate) type Invariant = fn(&State, &Sizes) -> bool;\n\n'
            '/// What must hold in every state, by name.\n'
            f'pub(crate) const INVARIANTS: [(&str, Invariant); {len(names)}] = [\n'
            + ',\n'.join(names) + '];\n\n')
    return head + text


def parameters(action):
    """The names and types of an action's parameters."""
    found = []
    for parameter in action.parameters:
        sort = parameter.sort().name()
        kind = {'Bool': 'bool', 'Fence': 'u64'}.get(sort, 'usize')
        found.append((str(parameter), kind))
    return found


def write_actions():
    variants, taken, names = '', '', ''
    for action in ACTIONS:
        given = parameters(action)
        listed = ', '.join(f'{name}: {kind}' for name, kind in given)
        variants += f'{documented(action.sentence, 4)}{camel(action.name)} {{ {listed} }},\n'
        names += f'Action::{camel(action.name)} {{ .. }} => "{action.name}",\n'
        pattern = ', '.join(name for name, _ in given)
        function = re.sub('[^a-z]+', '_', action.name)
        taken += (f'Action::{camel(action.name)} {{ {pattern} }} => '
                  f'{function}_step(sizes, &mut s, {pattern}),\n')
    steps = '\n\n'.join(write_step(action) for action in ACTIONS)
    return (
        '/// What may happen. Fences are values here, not ranks.\n'
        '#[derive(Clone, Copy, Debug, PartialEq, Eq)]\npub(crate) enum Action {\n' + variants
        + '}\n\nimpl Action {\n/// Its name in the proof.\n'
        'pub(crate) const fn name(self) -> &\'static str {\nmatch self {\n' + names + '}\n}\n}\n\n'
        f'/// All actions, by name.\npub(crate) const ACTIONS: [&str; {len(ACTIONS)}] = ['
        + ', '.join(f'"{action.name}"' for action in ACTIONS) + '];\n\n'
        'impl State {\n/// The state after an action; an error names a requirement that is not '
        'met.\npub(crate) fn take(&self, sizes: &Sizes, action: Action) -> '
        'Result<State, &\'static str> {\nlet mut s = self.clone();\n'
        'let mut after = match action {\n' + taken + '}?;\nafter.collect();\nOk(after)\n}\n}\n\n'
        + steps)


def write_step(action):
    step = action.step(SYMBOLS)
    text = re.sub('[^a-z]+', '_', action.name)
    listed = ', '.join(f'{name}: {kind}' for name, kind in parameters(action))
    lines = [f'fn {text}_step(sizes: &Sizes, s: &mut State, {listed}) '
             '-> Result<State, &\'static str> {']
    for name, kind in parameters(action):
        if kind == 'u64':
            lines.append(f'let {name} = s.rank({name});')
    for rule, formula in step.requires.items():
        lines.append(f'if !({write(formula, Rust())}) {{ return Err("{rule}"); }}')
    lines.append('let mut t = s.clone();')
    for relation, change in step.changes.items():
        lines.append(write_change(relation, change))
    return '\n'.join(lines) + '\nOk(t)\n}'


def write_change(relation, change):
    sorts, value, *_ = RELATIONS[relation]
    places = [Const(f'y{index}', sort) for index, sort in enumerate(sorts)]
    formula = write(change(*places), Rust())
    kinds = [sort.name() for sort in sorts]
    if relation == 'stored':
        write_it = 'if is_so { t.stored[y2] |= place } else { t.stored[y2] &= !place }'
        body = f'let place = 1_u32 << (y0 * NODES_MAX + y1);\nlet is_so = {formula};\n{write_it}'
    elif value == Bool:
        place = 'y0' if len(kinds) == 1 else f'(y0 * {MOST[kinds[1]]} + y1)'
        write_it = f'if is_so {{ t.{relation} |= place }} else {{ t.{relation} &= !place }}'
        body = f'let place: Bits = 1 << {place};\nlet is_so = {formula};\n{write_it}'
    elif not sorts:
        return f't.{relation} = {formula} as u8;'
    else:
        body = f't.{relation}[y0] = {formula} as u8;'
    for index in reversed(range(len(kinds))):
        body = f'for y{index} in 0..{COUNT[kinds[index]]} {{\n{body}\n}}'
    return body


def write_rust():
    text = '\n'.join([HEAD, write_state(), write_invariants(), write_actions()])
    return subprocess.run(
        ['rustfmt', '--edition', '2024', '--config-path', 'rustfmt.toml'], input=text, text=True,
        stdout=subprocess.PIPE, check=True).stdout
