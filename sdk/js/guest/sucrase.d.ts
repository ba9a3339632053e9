// The part of sucrase's types that is used here: where types are checked, its package may be missing.
declare module "sucrase" {
  export function transform(code: string, options: object): { code: string };
}
