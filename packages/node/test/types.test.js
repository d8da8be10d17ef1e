'use strict'

// The package as programs use it: in both module systems, and with the compiler.

const assert = require('node:assert/strict')
const { spawnSync } = require('node:child_process')
const { mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } = require('node:fs')
const { tmpdir } = require('node:os')
const { join } = require('node:path')
const { after, test } = require('node:test')
const { PATIENCE, three, urls } = require('./nodes.js')

const nodes = three()
const modules = process.env.NODE_PATH
const folder = mkdtempSync(join(tmpdir(), 'lockmod-types-'))
symlinkSync(modules, join(folder, 'node_modules'))
after(() => rmSync(folder, { recursive: true, force: true }))

const run = (command, ...given) =>
  spawnSync(command, given, { cwd: folder, encoding: 'utf8', timeout: 4 * PATIENCE })
const tsc = (...given) => run(process.execPath, join(modules, 'typescript/bin/tsc'), ...given)
const strict = ['--strict', '--noUncheckedIndexedAccess', '--target', 'es2022', '--module', 'nodenext']

const USE = `
async function work(locker: Locker): Promise<string[]> {
  const said: string[] = []
  {
    await using guard = await locker.acquire('typed', { wait: 1000, signal: AbortSignal.timeout(60_000) })
    const checked: Guard = guard
    checked.lost.addEventListener('abort', () => console.log(checked.lost.reason))
    const fence: number = guard.fence
    said.push(\`held \${fence}\`)
    await locker.tryAcquire('typed').catch((error: unknown) => {
      if (!(error instanceof HeldError)) throw error
      const left: number = (error.left ?? 0) + error.nodes.reduce((sum, vote) => sum + (vote.left ?? 0), 0)
      said.push(left > 0 ? 'refused' : 'free')
    })
  }
  {
    using short = new Locker(process.argv.slice(3))
    await using other: Locker = new Locker(process.argv.slice(3))
    for (const closed of [short, other]) closed.close()
  }
  const state: string | undefined = (await locker.info('typed'))[0]?.state
  said.push(state ?? 'none', await locker.using('typed', (guard, lost) => \`\${lost.aborted} \${guard.fence}\`))
  await locker.using('typed', { shared: true }, (guard) => said.push(\`reads \${guard.exclusive}\`))
  const [reads, writes] = await locker.acquireMany(['typed:w'], { shared: ['typed:r'] })
  const kinds: (boolean | undefined)[] = [reads?.exclusive, writes?.exclusive]
  {
    await using guards = await locker.acquireMany(['typed:x', 'typed:y'])
    const fences: number[] = guards.map((guard) => guard.fence)
    said.push(\`\${fences.length}\`)
  }
  said.push(await locker.usingMany(['typed:x'], (guards, lost) => \`\${guards.length} \${lost.aborted}\`))
  await writes?.downgrade()
  const told = (await locker.info('typed:w'))[0]
  const labels: ReadonlyArray<string> = told?.readerLabels ?? []
  said.push(kinds.join('-'), \`\${labels.length} of \${told?.readers} readers\`)
  const redlock = new Redlock(locker, { retryCount: 3 })
  await redlock.using(['typed'], 20_000, async (signal: RedlockAbortSignal) => {
    const error: Error | undefined = signal.error
    said.push(String(error))
  })
  try {
    await using guard = await locker.acquire('lost')
    for (const node of process.argv.slice(3)) execFileSync('redis-cli', ['-u', node, 'DEL', guard.name])
  } catch (error) {
    if (error instanceof LostError) said.push(error.reason)
  }
  try {
    await using guard = await locker.acquire('lost')
    for (const node of process.argv.slice(3)) execFileSync('redis-cli', ['-u', node, 'DEL', guard.name])
    await guard.extend()
  } catch (error) {
    said.push((error as Error).name)
  }
  return said
}
void work(new Locker(process.argv.slice(3), { ttl: 30_000, timeout: 1000 })).then((said) => console.log(said.join()))
`
const IMPORTS = `
import { execFileSync } from 'node:child_process'
import { Guard, HeldError, Locker, LostError } from 'lockmod'
`
const PROGRAMS = {
  'use.mts': `${IMPORTS}import Redlock, { type RedlockAbortSignal } from 'lockmod/redlock'\n${USE}`,
  'use.cts': `${IMPORTS}import { Redlock, type RedlockAbortSignal } from 'lockmod/redlock'\n${USE}`,
}
const WRONG = [
  "new Locker('redis://a', { tll: 3 })",
  "new Locker('redis://a').acquire(3)",
  "new Locker('redis://a').acquire('a').fence",
  "new Locker('redis://a').acquire('a', { shared: 'yes' })",
  "new Locker('redis://a').acquireMany(['a'], { shared: true })",
  "new Locker('redis://a', { shared: true })",
  "new Locker('redis://a').using('a', (guard) => guard.x)",
  'new Guard()',
  "(await new Locker('redis://a').acquireMany(['a'])).pop()",
]

test('programs are compiled against the types, and run in both systems of modules', () => {
  for (const [name, text] of Object.entries(PROGRAMS)) {
    const file = join(folder, name)
    writeFileSync(file, text)
    const checked = tsc(...strict, '--types', 'node', file)
    assert.equal(checked.status, 0, checked.stdout)
    const program = file.replace(/ts$/, 'js')
    const ran = run(process.execPath, program, '--', ...urls(nodes))
    const said = new RegExp(
      '^held (\\d+),refused,(free|reserved),false \\d+,reads false,2,1 false,false-true,0 of 1 readers,' +
        'undefined,removed,LostError\\n$',
    )
    assert.match(ran.stdout, said, ran.stderr)
  }
})

test('the types need no newer language than Node.js 18 has, and allow options that are undefined', () => {
  const file = join(folder, 'optional.mts')
  writeFileSync(
    file,
    `import { Locker, type AcquireOptions } from 'lockmod'
import { ExecutionError, type ClientExecutionResult } from 'lockmod/redlock'
const asked: AcquireOptions = { signal: undefined, wait: undefined, shared: undefined }
void new Locker('redis://a', { ttl: undefined, cacert: undefined }).acquireMany(['a'], { signal: asked.signal })
new ExecutionError('x', [], { cause: 5 })
export const vote: ClientExecutionResult = { client: 'redis://a', vote: 'for', value: 1 }
`,
  )
  const old = ['--strict', '--exactOptionalPropertyTypes', '--target', 'es2020', '--lib', 'es2020']
  const { stdout } = tsc(...old, '--module', 'nodenext', '--types', 'node', '--noEmit', file)
  // What others declare may need more.
  const ours = stdout.split('\n').filter((line) => /optional\.mts|(index|redlock)\.d\.m?ts/.test(line))
  assert.deepEqual(ours.filter((line) => !line.includes('@types')), [], stdout)
})

test('wrong programs are not', () => {
  const files = WRONG.map((wrong, number) => {
    const file = join(folder, `wrong${number}.mts`)
    writeFileSync(file, `import { Guard, Locker } from 'lockmod'\n${wrong}\nexport { Guard }\n`)
    return file
  })
  const { stdout } = tsc(...strict, '--types', 'node', '--noEmit', ...files)
  const refused = [...stdout.matchAll(/^wrong(\d+)\.mts\(2,/gm)].map((match) => Number(match[1]))
  assert.deepEqual([...new Set(refused)], [...WRONG.keys()], stdout)
})

test('what is described is what is there', () => {
  const project = join(__dirname, '..')
  const checked = tsc('--project', project, '--typeRoots', join(modules, '@types'))
  assert.equal(checked.status, 0, checked.stdout)
})

test('both systems of modules have the same names, which are those described', async () => {
  for (const [name, file] of [['lockmod', 'index'], ['lockmod/redlock', 'redlock']]) {
    const required = Object.keys(require(name)).filter((name) => name !== '__esModule')
    const imported = run(
      process.execPath,
      '--input-type=module',
      '-e',
      `import * as all from '${name}'; console.log(Object.keys(all).join())`,
    )
    const names = imported.stdout.trim().split(',')
    assert.deepEqual(names.sort(), required.sort(), imported.stderr)
    const text = require('node:fs').readFileSync(join(__dirname, '..', `${file}.d.ts`), 'utf8')
    const described = [...text.matchAll(/^export class (\w+)/gm)].map((match) => match[1])
    assert.deepEqual(described.sort(), required.filter((name) => name !== 'default').sort())
  }
})

test('what node-redlock describes is described', () => {
  const read = (file) => require('node:fs').readFileSync(file, 'utf8')
  const names = (text) =>
    [...text.matchAll(/^export (?:declare |default )*(?:class|interface|type) (\w+)/gm)].map(([, name]) => name)
  const [theirs, ours] = [join(modules, 'redlock/dist/index.d.ts'), join(__dirname, '../redlock.d.ts')].map(read)
  assert.ok(names(theirs).length > 5)
  assert.deepEqual(names(theirs).filter((name) => !names(ours).includes(name)), [])
})

test('a package for others has all that it needs', () => {
  const packed = run('npm', 'pack', '--json', '--dry-run', join(__dirname, '..'))
  const files = JSON.parse(packed.stdout)[0].files.map(({ path }) => path)
  for (const folder of ['.', 'lib']) {
    for (const name of readdirSync(join(__dirname, '..', folder))) {
      if (/\.(js|mjs|d\.ts|d\.mts|node)$/.test(name)) {
        const path = folder === '.' ? name : `${folder}/${name}`
        assert.ok(files.includes(path), `${path} is missing`)
      }
    }
  }
  assert.ok(!files.some((path) => /^(src|test)\//.test(path)))
})
