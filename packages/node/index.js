'use strict'

const errors = require('./lib/errors.js')
const { Guard, Guards } = require('./lib/guard.js')
const { Locker } = require('./lib/locker.js')

module.exports = {
  Guard,
  Guards,
  HeldError: errors.HeldError,
  LockError: errors.LockError,
  Locker,
  LostError: errors.LostError,
  NoQuorumError: errors.NoQuorumError,
  OptionError: errors.OptionError,
  RefusedError: errors.RefusedError,
  TooLateError: errors.TooLateError,
}
