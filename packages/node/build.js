'use strict'

// Builds the native part if its sources are here, as in a clone. A package that was made by `npm
// pack` contains the native part, and needs no compiler.

const { spawnSync } = require('node:child_process')
const { copyFileSync, existsSync, renameSync } = require('node:fs')
const { join } = require('node:path')
const { binary } = require('./lib/native.js')

const manifest = join(__dirname, 'Cargo.toml')
const target = process.env.CARGO_TARGET_DIR ?? join(__dirname, 'target')
const library = process.platform === 'darwin' ? 'liblockmod_node.dylib' : 'liblockmod_node.so'

if (existsSync(manifest)) {
  const options = ['build', '--release', '--manifest-path', manifest, '--target-dir', target]
  const { status, error } = spawnSync('cargo', options, { stdio: 'inherit' })
  if (status !== 0) {
    const needs = 'The package is built with Rust: https://rustup.rs'
    console.error(error ? `cargo: ${error.message}. ${needs}` : '')
    process.exit(1)
  }
  // In one step: a running program keeps the file that it has loaded.
  copyFileSync(join(target, 'release', library), `${binary}.new`)
  renameSync(`${binary}.new`, binary)
} else if (!existsSync(binary)) {
  const platform = `${process.platform} on ${process.arch}`
  console.error(`This package was made for another platform than ${platform}.`)
  process.exit(1)
}
