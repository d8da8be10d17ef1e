import lockmod from './index.js'

export const {
  Guard,
  Guards,
  HeldError,
  LockError,
  Locker,
  LostError,
  NoQuorumError,
  OptionError,
  RefusedError,
  TooLateError,
} = lockmod
