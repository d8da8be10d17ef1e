// Not run: the compiler compares the described types with the code.

import type * as api from '../index.js'
import type * as redlock from '../redlock.js'
import * as errors from '../lib/errors.js'
import { Guard, OURS } from '../lib/guard.js'
import { Locker } from '../lib/locker.js'

type Lease = ConstructorParameters<typeof Guard>[0]

export const makeGuard = (lease: Lease): api.Guard => new Guard(lease, OURS)
export const makeLocker = (options: api.LockerOptions): api.Locker => new Locker('', options)
export const makeErrors = (): [api.HeldError, api.LostError, api.LockError[]] => [
  new errors.HeldError(),
  new errors.LostError(),
  [new errors.NoQuorumError(), new errors.OptionError(), new errors.RefusedError()],
]
export const settings: redlock.Settings | undefined = undefined
