enum Mark {
  Loud = "!",
}

export const shout = (text: string): string => text.toUpperCase() + Mark.Loud;
