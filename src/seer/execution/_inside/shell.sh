# Run one command of a shell session: bash -c "$(cat shell.sh)" bash STATE SAVE COMMAND
#
# Each command is a bash of its own, so none can break the session's shell; what a shell remembers
# (folder, variables, functions, aliases, options) is read from STATE before and, when SAVE is 1,
# written back after it.

__seer_state=$1 __seer_keep=$2 __seer_command=$3
set --

__seer_save() {
  local IFS=$' \t\n' name
  {
    for name in $(compgen -v); do
      case $name in
        BASH | BASH_* | BASHPID | BASHOPTS | COMP_* | DIRSTACK | EPOCH* | EUID | FUNCNAME | GROUPS | HISTCMD | \
          LINENO | OPTERR | OPTIND | PIPESTATUS | PPID | RANDOM | SECONDS | SHELLOPTS | SHLVL | SRANDOM | UID | \
          IFS | name | _ | __seer_* | SEER_TOOL_CALL) continue ;;
      esac
      case ${!name@a} in *r*) continue ;; esac
      declare -p "$name"
    done
    declare -f | sed '/^__seer_save ()/,/^}/d'
    printf 'cd -- %q\n' "$PWD"
    printf 'umask %s\n' "$(umask)"
    shopt -p
    alias -p
    set +o
  } >"$__seer_state.$$" 2>/dev/null && mv -f -- "$__seer_state.$$" "$__seer_state"
}

shopt -s expand_aliases
if [[ -r $__seer_state ]]; then
  source "$__seer_state" 2>/dev/null
fi
if [[ $__seer_keep == 1 ]]; then
  trap __seer_save EXIT
fi
eval "$__seer_command"
